"""What is cut out of each document: the passages of both levels that lose, and the lines that rules cut, as spans."""

from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import content_hash
from tasks.corpus.manifest import Shard
from tasks.corpus.parquet import read_table
from tasks.corpus.storage import open_store, to_json
from tasks.curation.dedup.candidates import texts_of
from tasks.curation.dedup.passage_files import cut_paragraphs
from tasks.curation.dedup.passages import Passage, cuts, without
from tasks.curation.dedup.pieces import read_piece
from tasks.curation.dedup.plan import PARAGRAPH, SENTENCE, Run, load_run
from tasks.curation.signal_files import read_signals

SCHEMA_VERSION = 2
CODE_VERSION = 1  # raise when other spans may be cut for the same passages
SPAN = pa.struct(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("rule", pa.string()),
        ("level", pa.string()),
        ("twin_id", pa.string()),
        ("similarity", pa.float64()),
        ("bytes", pa.int64()),
    ]
)
CUTS = pa.schema(
    [
        ("row", pa.int64()),
        ("of", pa.string()),  # hash of the document and the passages that the spans follow from
        ("spans", pa.list_(SPAN)),
        ("removed_bytes", pa.int64()),
        ("left", pa.int64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def cuts_name(shard: Shard) -> str:
    return f"{shard.id}.cuts.parquet"


def write_cuts(part: int, work: str) -> dict[str, Any]:
    """`duplicates/<shard>.cuts.parquet`: of every document with a passage to cut, all its spans and what is left."""
    run = load_run(work)
    name = f"{SENTENCE}/cuts/{part:05d}.json"
    store = open_store(run.plan.output).sub("duplicates")
    if run.store.exists(name):
        finished = orjson.loads(run.store.read(name))
        if all(store.size(file) == size for file, size in finished["files"].items()):
            return finished
    facts: dict[str, Any] = {"files": {}, "documents": 0}
    chosen = _chosen(run, part)
    for number, shard in enumerate(run.plan.parts[part]):
        wanted = {row: found for (position, row), found in chosen.items() if position == number}
        rows = _of_shard(run, shard, wanted) if wanted else []
        if rows:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(rows, schema=CUTS), sink, compression="zstd")
            data = sink.getvalue().to_pybytes()
            store.write(cuts_name(shard), data)
            facts["files"][cuts_name(shard)] = len(data)
            facts["documents"] += len(rows)
    run.store.write(name, to_json(facts))
    return facts


def _of_shard(run: Run, shard: Shard, wanted: dict[int, list[Passage]]) -> list[dict[str, Any]]:
    """Rows of CUTS. Text is read only of documents with other passages than an earlier run had cut."""
    table = read_signals(run.plan.output, shard, run.config, ["row", "doc_id", "spans"])
    found: dict[int, dict[str, Any]] = {}
    asked: dict[int, tuple[str, list[Passage]]] = {}
    expected: dict[int, bytes] = {}
    known = read_cuts(run.plan.output, shard)
    for item in table.to_pylist():
        row = item["row"]
        if row in wanted:
            lines = [Passage(span["start"], span["end"], span["rule"], "line") for span in item["spans"] or []]
            passages = [*wanted[row], *lines]
            of = _hash(item["doc_id"], passages)
            if row in known and known[row].get("of") == of:
                found[row] = known[row]
            else:
                asked[row], expected[row] = (of, passages), bytes.fromhex(item["doc_id"])
    for row, text in texts_of(shard, run.plan.landing, expected, run.config):
        of, passages = asked[row]
        found[row] = {"row": row, "of": of, **_cut(text, passages)}
    return [found[row] for row in sorted(found)]


def _hash(doc_id: str, passages: list[Passage]) -> str:
    return content_hash(["cuts", SCHEMA_VERSION, CODE_VERSION, doc_id, [asdict(passage) for passage in passages]])[:32]


def _chosen(run: Run, part: int) -> dict[tuple[int, int], list[Passage]]:
    """(shard, row) → passages to cut, of both levels."""
    found: dict[tuple[int, int], list[Passage]] = {}
    for item in cut_paragraphs(run, part).to_pylist():
        rule = "paragraph_exact" if item["exact"] else "paragraph_near"
        place = Passage(item["start"], item["end"], rule, PARAGRAPH, item["twin_id"], item["similarity"])
        found.setdefault((item["shard"], item["row"]), []).append(place)
    if run.config.dedup.sentences:
        for other in range(run.parts(SENTENCE)):
            for table in read_piece(run.store, f"{SENTENCE}/repeated/{other:05d}", part):
                for item in table.to_pylist():
                    place = Passage(item["start"], item["end"], "sentence_repeated", SENTENCE, item["twin_id"], 1.0)
                    found.setdefault((item["shard"], item["row"]), []).append(place)
    return found


def _cut(text: str, passages: list[Passage]) -> dict[str, Any]:
    spans = cuts(text, passages)
    sizes = [len(text[span.start : span.end].encode()) for span in spans]
    return {
        "spans": [
            {
                "start": span.start,
                "end": span.end,
                "rule": span.rule,
                "level": span.level,
                "twin_id": span.twin_id,
                "similarity": span.similarity,
                "bytes": size,
            }
            for span, size in zip(spans, sizes, strict=True)
        ],
        "removed_bytes": sum(sizes),
        "left": len(without(text, spans).strip()),
    }


def read_cuts(output: str, shard: Shard) -> dict[int, dict[str, Any]]:
    """Row → its spans, the bytes they remove, and how many characters are left, for one shard."""
    store, name = open_store(output).sub("duplicates"), cuts_name(shard)
    if not store.exists(name):
        return {}
    with store.open(name) as stream:
        return {item["row"]: item for item in read_table(stream).to_pylist()}


