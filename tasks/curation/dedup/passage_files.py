"""Paragraphs and sentences across the documents of a run: which are cut, and what is left.

Paragraphs go through the same steps as documents, with documents' order first and then their position. Sentences are
matched word for word: near-matching them does more harm than good. Both are compared within one snapshot, so that what
an earlier day published never changes. Only prose that is kept takes part.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from tasks.corpus.manifest import Shard
from tasks.corpus.parquet import read_table
from tasks.corpus.storage import open_store, to_json
from tasks.curation.config import DedupConfig
from tasks.curation.dedup.candidates import texts_of
from tasks.curation.dedup.levels import each, find_duplicates
from tasks.curation.dedup.members import finished_units, write_units
from tasks.curation.dedup.passages import (
    Passage,
    cuts,
    identity,
    long_enough,
    of_day,
    paragraphs,
    sentence_hash,
    sentences,
    tokens,
    without,
)
from tasks.curation.dedup.pieces import Chunk, read_piece, read_status, write_piece
from tasks.curation.dedup.plan import DOCUMENT, PARAGRAPH, REF_BITS, Run, load_run
from tasks.curation.dedup.shingles import bands_and_rows, signature
from tasks.curation.dedup.units import UNITS, band_hashes, packed
from tasks.curation.dedup.walk import DECIDED
from tasks.curation.signal_files import read_signals

CODE_VERSION = 1  # raise when other passages may be cut
SCHEMA_VERSION = 1
SENTENCE = "sentence"
AT_ONCE = 4096  # passages that are handed on together
FOUND = pa.schema(
    [
        ("hash", pa.uint64()),
        ("day", pa.int32()),
        ("characters", pa.int64()),  # of the document
        ("doc_id", pa.binary(16)),
        ("part", pa.int32()),
        ("shard", pa.int32()),
        ("row", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)
REPEATED = pa.schema([*[FOUND.field(name) for name in ("shard", "row", "start", "end")], ("twin_id", pa.string())])
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
    [("row", pa.int64()), ("spans", pa.list_(SPAN)), ("removed_bytes", pa.int64()), ("left", pa.int64())],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
Texts = Iterator[tuple[dict[str, Any], str]]  # a kept document's row of the member piece, and its normalised text


def write_paragraphs(part: int, work: str) -> dict[str, int]:
    """Pieces `paragraph/members/<part>` and `paragraph/bands/<part>`: the paragraphs that are long enough."""
    run = load_run(work)
    if (status := finished_units(run, PARAGRAPH, part)) is not None:
        return status
    return write_units(run, PARAGRAPH, part, _paragraphs(run, part))


def _paragraphs(run: Run, part: int) -> Iterator[pa.Table]:
    config, least = run.dedup(PARAGRAPH), run.config.dedup.paragraphs
    assert least is not None
    units: list[dict[str, Any]] = []
    signatures: list[np.ndarray] = []
    for member, text in kept_prose(run, part):
        day = member["day"]
        for start, end in long_enough(paragraphs(text), tokens(text), least.min_tokens):
            passage = text[start:end]
            signatures.append(signature(passage, config))
            units.append(member | {"start": start, "end": end, "identity": identity(passage, day), "bands": None})
        if len(units) >= AT_ONCE:
            yield _units(units, signatures, config)
            units, signatures = [], []
    if units:
        yield _units(units, signatures, config)


def _units(units: list[dict[str, Any]], signatures: list[np.ndarray], config: DedupConfig) -> pa.Table:
    days = np.array([unit["day"] for unit in units], dtype=np.uint64)
    bands = of_day(band_hashes(np.array(signatures), *bands_and_rows(config)), days)
    table = pa.Table.from_pylist(units, schema=UNITS)
    return table.set_column(UNITS.get_field_index("bands"), "bands", packed(bands))


def kept_prose(run: Run, part: int) -> Texts:
    """The part's documents of prose that survived the document level, in the order of shards and rows."""
    lost = _positions(run, DOCUMENT, part)
    tables = list(read_piece(run.store, f"{DOCUMENT}/members/{part:05d}", 0))
    members = pa.concat_tables([UNITS.empty_table(), *tables]).drop_columns(["bands"])
    kept = np.ones(members.num_rows, dtype=bool)
    kept[lost] = False
    members = members.filter(pa.array(kept))
    for number, shard in enumerate(run.shards(part)):
        mine = members.filter(pa.array(members["shard"].to_numpy() == number))
        signals = read_signals(run.plan.output, shard, run.config, ["row", "kind"])
        prose = {row for row, kind in zip(*signals.to_pydict().values(), strict=True) if kind == "prose"}
        by_row = {item["row"]: item for item in mine.to_pylist() if item["row"] in prose}
        expected = {row: item["doc_id"] for row, item in by_row.items()}
        for row, text in texts_of(shard, run.plan.landing, expected, run.config):
            yield by_row[row], text


def _positions(run: Run, level: str, part: int) -> np.ndarray:
    return _decided(run, level, part)["ref"].to_numpy() & ((1 << REF_BITS) - 1)


def _decided(run: Run, level: str, part: int) -> pa.Table:
    pieces = [
        table
        for other in range(run.parts(level))
        for table in read_piece(run.store, f"{level}/decided/{other:05d}", part)
    ]
    return pa.concat_tables([DECIDED.empty_table(), *pieces])


def find_sentences(part: int, work: str) -> dict[str, int]:
    """Piece `sentence/found/<part>`: every sentence that is long enough and in no paragraph that is cut."""
    run = load_run(work)
    name, least = f"{SENTENCE}/found/{part:05d}", run.config.dedup.sentences
    assert least is not None
    if (status := read_status(run.store, name)) is not None:
        return status
    gone = set()
    if run.config.dedup.paragraphs:
        columns = ("shard", "row", "start")
        decided = _decided(run, PARAGRAPH, part).select(columns)
        gone = set(zip(*(decided[column].to_pylist() for column in columns), strict=True))
    parts = run.parts(PARAGRAPH)

    def chunks() -> Iterator[Chunk]:
        rows: list[tuple[Any, ...]] = []
        for member, text in kept_prose(run, part):
            counts = tokens(text)
            base = (member["day"], member["characters"], member["doc_id"], part, member["shard"], member["row"])
            for start, end in long_enough(paragraphs(text), counts, least.min_tokens):
                if (member["shard"], member["row"], start) not in gone:
                    places = long_enough(sentences(text, start, end), counts, least.min_tokens)
                    rows.extend((sentence_hash(text[slice(*place)], member["day"]), *base, *place) for place in places)
            if len(rows) >= AT_ONCE:
                yield from _by_hash(rows, parts)
                rows = []
        yield from _by_hash(rows, parts)

    return write_piece(run.store, name, FOUND, chunks(), {}, run.budget // 8)


def _by_hash(rows: list[tuple[Any, ...]], parts: int) -> Iterator[Chunk]:
    columns = list(zip(*rows, strict=True)) or [() for _ in FOUND.names]
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, FOUND, strict=True)], schema=FOUND)
    target = table["hash"].to_numpy() % np.uint64(parts)
    for number in range(parts):
        yield number, table.filter(pa.array(target == number))


def find_repeats(part: int, work: str) -> dict[str, int]:
    """Piece `sentence/repeated/<part>`: of sentences in enough documents, all occurrences but the first in the total
    order, by the part that they lie in."""
    run = load_run(work)
    name, least = f"{SENTENCE}/repeated/{part:05d}", run.config.dedup.sentences
    assert least is not None
    if (status := read_status(run.store, name)) is not None:
        return status
    parts = run.parts(PARAGRAPH)
    names = [f"{SENTENCE}/found/{other:05d}" for other in range(parts)]
    hashes = [table["hash"].to_numpy() for name in names for table in read_piece(run.store, name, part)]
    values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
    often = values[counts >= least.documents]
    frequent = [FOUND.empty_table()]
    for other in names:
        for table in read_piece(run.store, other, part):
            frequent.append(table.filter(pa.array(np.isin(table["hash"].to_numpy(), often))))
    rows = sorted(pa.concat_tables(frequent).to_pylist(), key=_order)
    places = Counter(value for value, *_ in {(row["hash"], row["doc_id"]) for row in rows})
    repeated: dict[int, list[dict[str, Any]]] = {}
    first: dict[str, Any] = {"hash": None}
    for row in rows:
        if row["hash"] != first["hash"]:
            first = row
        elif places[row["hash"]] >= least.documents:
            repeated.setdefault(row["part"], []).append(
                {column: row[column] for column in ("shard", "row", "start", "end")}
                | {"twin_id": first["doc_id"].hex()}
            )
    tables = ((owner, pa.Table.from_pylist(found, schema=REPEATED)) for owner, found in sorted(repeated.items()))
    return write_piece(run.store, name, REPEATED, tables, {}, run.budget // 8)


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["hash"], row["day"], -row["characters"], row["doc_id"], row["start"]


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
    for number, shard in enumerate(run.shards(part)):
        wanted = {row: found for (position, row), found in chosen.items() if position == number}
        expected, lines = _line_cuts(run, shard, wanted)
        rows = [
            {"row": row, **_cut(text, [*wanted[row], *lines[row]])}
            for row, text in texts_of(shard, run.plan.landing, expected, run.config)
        ]
        if rows:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.Table.from_pylist(rows, schema=CUTS), sink, compression="zstd")
            data = sink.getvalue().to_pybytes()
            store.write(cuts_name(shard), data)
            facts["files"][cuts_name(shard)] = len(data)
            facts["documents"] += len(rows)
    run.store.write(name, to_json(facts))
    return facts


def _chosen(run: Run, part: int) -> dict[tuple[int, int], list[Passage]]:
    """(shard, row) → passages to cut, of both levels."""
    found: dict[tuple[int, int], list[Passage]] = {}
    if run.config.dedup.paragraphs:
        for item in _decided(run, PARAGRAPH, part).to_pylist():
            rule = "paragraph_exact" if item["exact"] else "paragraph_near"
            place = Passage(item["start"], item["end"], rule, PARAGRAPH, item["twin_id"], item["similarity"])
            found.setdefault((item["shard"], item["row"]), []).append(place)
    if run.config.dedup.sentences:
        for other in range(run.parts(PARAGRAPH)):
            for table in read_piece(run.store, f"{SENTENCE}/repeated/{other:05d}", part):
                for item in table.to_pylist():
                    place = Passage(item["start"], item["end"], "sentence_repeated", SENTENCE, item["twin_id"], 1.0)
                    found.setdefault((item["shard"], item["row"]), []).append(place)
    return found


def _line_cuts(
    run: Run, shard: Shard, wanted: dict[int, Any]
) -> tuple[dict[int, bytes], dict[int, list[Passage]]]:
    """Of the wanted rows, their doc_id, and the lines that rules cut, as the signals recorded them."""
    if not wanted:
        return {}, {}
    table = read_signals(run.plan.output, shard, run.config, ["row", "doc_id", "spans"])
    rows = [item for item in table.to_pylist() if item["row"] in wanted]
    lines = {
        item["row"]: [Passage(span["start"], span["end"], span["rule"], "line") for span in item["spans"] or []]
        for item in rows
    }
    return {item["row"]: bytes.fromhex(item["doc_id"]) for item in rows}, lines


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


def find_passages(client: Client, work: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All steps of both levels, after the document level. Returns what each part wrote, and what they counted."""
    run = load_run(work)
    parts, dedup = run.parts(PARAGRAPH), run.config.dedup
    counted: dict[str, Any] = {}
    if dedup.paragraphs:
        counted["paragraphs"] = find_duplicates(client, work, PARAGRAPH, write_paragraphs)
    if dedup.sentences:
        each(client, find_sentences, run, parts, work)
        each(client, find_repeats, run, parts, work)
    written = each(client, write_cuts, run, parts, work) if dedup.paragraphs or dedup.sentences else []
    return written, counted | {"cut_documents": sum(part["documents"] for part in written)}
