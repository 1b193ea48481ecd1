"""The clustering step: `duplicates/<shard>.parquet` for each shard that has documents to drop, and a summary.

Every step below it is a piece of work per part (`pieces.py`), done by the workers; here is only their order. A killed
run finds its finished pieces again; the work folder is deleted when the summary is written.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from tasks.corpus.artifact import content_hash
from tasks.corpus.manifest import Manifest, Shard
from tasks.corpus.parquet import read_table
from tasks.corpus.storage import Store, join, open_store, to_json
from tasks.curation.config import CurationConfig
from tasks.curation.dedup import cut_files, passage_files, walk
from tasks.curation.dedup import index as indexes
from tasks.curation.dedup.cut_files import write_cuts
from tasks.curation.dedup.levels import clear_links, decide, each, find_candidates
from tasks.curation.dedup.members import documents_present, passing, write_members, write_passing
from tasks.curation.dedup.passage_files import (
    find_repeats,
    find_sentences,
    known_sentences,
    paragraphs_present,
    surviving_paragraphs,
    write_paragraphs,
)
from tasks.curation.dedup.pieces import read_piece
from tasks.curation.dedup.plan import DOCUMENT, NAME, PARAGRAPH, REF_BITS, SENTENCE, Plan, Run, cut_into_parts, load_run
from tasks.curation.dedup.takedown import RULE as TAKEN_DOWN
from tasks.curation.dedup.takedown import taken_down
from tasks.curation.signal_files import read_signals, sidecars
from tasks.curation.signal_files import read_status as signals_status

SCHEMA_VERSION = 2
SUMMARY = "summary.json"
LINKS_VERSION = 1  # raise when other candidates may be found
CODE_VERSIONS = (SCHEMA_VERSION, walk.CODE_VERSION, passage_files.CODE_VERSION, cut_files.CODE_VERSION)
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("rule", pa.string()),
        ("similarity", pa.float64()),
        ("twin_id", pa.string()),
        ("twin_shard", pa.string()),
        ("twin_row", pa.int64()),
        ("twin_snapshot", pa.string()),  # of an earlier snapshot; null: of this run
        ("detail", pa.string()),  # why it was taken down
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def clusters_key(manifest: Manifest, config: CurationConfig, known: list[Any]) -> str:
    """Content key of the clustering: all signals, all rules, and what is `known` from outside the run."""
    shards = manifest.shards
    keys = sorted([shard.key, shard.id, *sidecars(shard, config).values()] for shard in shards)
    return content_hash(["clusters", *CODE_VERSIONS, config.hash, keys, *known])[:32]


def cluster(
    manifest: Manifest,
    config: CurationConfig,
    output: str,
    client: Client,
    index: str | None = None,
    *,
    enter: bool = True,
) -> dict[str, Any]:
    """Find the duplicates of a whole run and write them by shard. Returns the summary.

    With an index, documents are duplicates of survivors of earlier snapshots, too, and this one gets an entry, unless
    it is not to `enter`.
    """
    enter = enter and bool(index)
    store = open_store(output).sub("duplicates")
    gone = taken_down(index or output)
    earlier = indexes.read_entries(index, manifest.snapshot) if index else {}
    against = {date: entry.hash for date, entry in earlier.items()}
    indexes.check_scheme(index or "", earlier.values(), config.dedup)
    key = clusters_key(manifest, config, [sorted(gone.items()), against, enter])
    if store.exists(SUMMARY):
        summary = orjson.loads(store.read(SUMMARY))
        current = summary["key"] == key and all(store.size(name) == size for name, size in summary["files"].items())
        if current and (not enter or indexes.has_entry(index or "", manifest.snapshot, key)):
            return {**summary, "reused": True}
        store.delete(SUMMARY)  # from here on the files are not to be believed
    for old in list(store.list("work/")):
        if not old.key.startswith(f"work/{key}/"):
            store.delete(old.key)
    plan = _plan(manifest, config, open_store(output).uri, key, sorted(gone), index, earlier.values())
    levels = [DOCUMENT, *([PARAGRAPH] if config.dedup.paragraphs else [])]
    plan = plan.model_copy(update={"links": {level: _links_folder(store, plan, config, level) for level in levels}})
    work = _begin(join(store.uri, "work", key), plan)
    found = {}
    for level, members in ((DOCUMENT, write_members), (PARAGRAPH, write_paragraphs)):
        if level in levels:
            links = _begin(plan.links[level], plan.model_copy(update={"links": {}}))
            found[level] = find_candidates(client, links, level, members)
            clear_links(links, level)
    summary = _decide(client, work, gone)
    summary[DOCUMENT] |= found[DOCUMENT]
    if PARAGRAPH in summary:
        summary[PARAGRAPH] |= found[PARAGRAPH]
    files = summary.pop("files")
    for old in list(store.list()):
        if "/" not in old.key and old.key not in files:
            store.delete(old.key)
    if enter:
        _write_entry(client, work, config, against)
    paragraphs = {"paragraphs": summary.pop(PARAGRAPH)} if PARAGRAPH in summary else {}
    summary = {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "files": files,
        **summary.pop(DOCUMENT),
        **paragraphs,
        **summary,
        "earlier_snapshots": sorted(against),
    }
    store.write(SUMMARY, to_json(summary))
    kept = [folder.removeprefix(f"{store.uri}/") for folder in plan.links.values()]
    for old in [*store.list("work/"), *store.list("links/")]:
        if not any(old.key.startswith(f"{folder}/") for folder in kept):
            store.delete(old.key)
    return {**summary, "reused": False}


def _plan(
    manifest: Manifest,
    config: CurationConfig,
    output: str,
    key: str,
    gone: list[str],
    index: str | None,
    entries: Iterable[indexes.Entry],
) -> Plan:
    some, budget = list(entries), config.dedup.memory_budget << 20
    earlier = {level: indexes.earlier_parts(index, some, budget, level) for level in indexes.SCHEMAS} if index else {}
    return Plan(
        key=key,
        output=output,
        landing=manifest.landing,
        snapshot=manifest.snapshot,
        curation=manifest.curation,
        parts=_parts(manifest, config, output),
        earlier=earlier,
        takedowns=gone,
        index=index or "",
    )


def _links_folder(store: Store, plan: Plan, config: CurationConfig, level: str) -> str:
    """Where a level's links belong: named by a hash of what they depend on, which no threshold of a rule is part of."""
    name = "signals" if level == DOCUMENT else "paragraphs"
    parts = [[[shard.key, shard.id, sidecars(shard, config)[name]] for shard in part] for part in plan.parts]
    earlier = [part.model_dump(mode="json") for part in plan.earlier.get(level, ())]
    paragraphs = config.dedup.paragraphs if level == PARAGRAPH else None
    dedup = config.dedup.model_copy(update={"paragraphs": paragraphs, "sentences": None})
    scheme = [indexes.scheme_of(dedup), plan.snapshot]
    return join(store.uri, "links", content_hash([level, LINKS_VERSION, parts, earlier, scheme])[:32])


def _begin(folder: str, plan: Plan) -> str:
    """A folder with its plan."""
    open_store(folder).write(NAME, to_json(plan.model_dump(mode="json")))
    return folder


def _decide(client: Client, work: str, gone: dict[str, str]) -> dict[str, Any]:
    """Who loses at each level, and what is cut for it. Returns what was counted, and the files written for shards."""
    run = load_run(work)
    own, dedup = len(run.plan.parts), run.config.dedup
    documents = sum(status["documents"] for status in each(client, write_passing, run, own, work))
    each(client, documents_present, run, run.parts(DOCUMENT), work)
    counted = decide(client, work, DOCUMENT)
    merged = each(client, write_duplicates, run, own, work, gone)
    rules = dict(sum((Counter(part["rules"]) for part in merged), Counter()))
    found: dict[str, Any] = {DOCUMENT: {"documents": documents, "duplicates": rules, **counted}}
    if dedup.paragraphs:
        each(client, paragraphs_present, run, run.parts(PARAGRAPH), work)
        found[PARAGRAPH] = decide(client, work, PARAGRAPH)
    if dedup.sentences:
        each(client, find_sentences, run, run.parts(SENTENCE), work)
        each(client, find_repeats, run, run.parts(SENTENCE), work)
    cut = each(client, write_cuts, run, own, work) if dedup.paragraphs or dedup.sentences else []
    files = {name: size for part in [*merged, *cut] for name, size in part["files"].items()}
    return {**found, "cut_documents": sum(part["documents"] for part in cut), "files": files}


def _parts(manifest: Manifest, config: CurationConfig, output: str) -> list[list[Shard]]:
    counts = [(signals_status(output, shard, config) or {"documents": 0})["documents"] for shard in manifest.shards]
    return cut_into_parts(manifest.shards, counts, config.dedup.memory_budget << 20)


def write_duplicates(part: int, work: str, gone: dict[str, str]) -> dict[str, Any]:
    """`duplicates/<shard>.parquet` of a part's shards."""
    run = load_run(work)
    name = f"{DOCUMENT}/merged/{part:05d}.json"
    store = open_store(run.plan.output).sub("duplicates")
    if run.store.exists(name):
        finished = orjson.loads(run.store.read(name))
        if all(store.size(file) == size for file, size in finished["files"].items()):
            return finished
    decided = _lost(run, part)
    facts: dict[str, Any] = {"files": {}}
    rules: Counter[str] = Counter()
    for number, shard in enumerate(run.plan.parts[part]):
        rows = _rows(run, decided.filter(pa.array(decided["shard"].to_numpy() == number)))
        rules.update(row["rule"] for row in rows)
        rows += _taken_down(run, shard, gone)
        if rows:
            data = _table_bytes(rows)
            store.write(f"{shard.id}.parquet", data)
            facts["files"][f"{shard.id}.parquet"] = len(data)
    facts["rules"] = dict(rules)
    run.store.write(name, to_json(facts))
    return facts


def _lost(run: Run, part: int) -> pa.Table:
    """The part's documents that lose to another."""
    names = (f"{DOCUMENT}/decided/{other:05d}" for other in range(run.parts(DOCUMENT)))
    return pa.concat_tables(
        [walk.DECIDED.empty_table(), *(table for name in names for table in read_piece(run.store, name, part))]
    )


def _rows(run: Run, decided: pa.Table) -> list[dict[str, Any]]:
    rows = []
    for item in decided.to_pylist():
        twin_part = item["twin"] >> REF_BITS
        earlier = run.earlier(twin_part, DOCUMENT)
        rows.append(
            {
                "row": item["row"],
                "rule": "duplicate_exact" if item["exact"] else "duplicate_near",
                "similarity": item["similarity"],
                "twin_id": item["twin_id"],
                "twin_shard": run.shards(twin_part, DOCUMENT)[item["twin_shard"]].key,
                "twin_row": item["twin_row"],
                "twin_snapshot": earlier.snapshot if earlier else None,
            }
        )
    return rows


def _taken_down(run: Run, shard: Shard, gone: dict[str, str]) -> list[dict[str, Any]]:
    if not gone:
        return []
    table = read_signals(run.plan.output, shard, run.config, ["row", "doc_id", "fault"])
    return [
        {"row": item["row"], "rule": TAKEN_DOWN, "detail": gone[item["doc_id"]]}
        for item in table.to_pylist()
        if item["doc_id"] in gone and not item["fault"]
    ]


def write_survivors(part: int, work: str) -> dict[str, Any]:
    """The index's files of a part's survivors, one a level; and the sum of what is in them, in hexadecimal digits."""
    run = load_run(work)
    name = f"{DOCUMENT}/survivors/{part:05d}.json"
    if run.store.exists(name):
        return orjson.loads(run.store.read(name))
    tables = {DOCUMENT: _surviving_documents}
    tables |= {PARAGRAPH: surviving_paragraphs} if run.config.dedup.paragraphs else {}
    tables |= {SENTENCE: known_sentences} if run.config.dedup.sentences else {}
    # Shards count from the run's first.
    before, sums, files = np.int32(sum(len(shards) for shards in run.plan.parts[:part])), 0, {}
    for level, rows in tables.items():
        moved = (_moved(table, before) for table in rows(run, part))
        key = f"{run.plan.snapshot}/{run.plan.key[:16]}-{part:05d}-{level}.parquet"
        file, total = indexes.write_survivors(open_store(run.plan.index), key, level, moved)
        files[level], sums = file.model_dump(mode="json"), sums + total
    facts = {"files": files, "sum": f"{sums:x}"}
    run.store.write(name, to_json(facts))
    return facts


def _moved(table: pa.Table, before: np.int32) -> pa.Table:
    if "shard" not in table.column_names:
        return table
    place = table.schema.get_field_index("shard")
    return table.set_column(place, "shard", pa.array(table["shard"].to_numpy() + before))


def _surviving_documents(run: Run, part: int) -> Iterator[pa.Table]:
    """The part's members that pass and did not lose."""
    kept = passing(run, part)["passes"].to_numpy().copy()
    kept[_lost(run, part)["ref"].to_numpy() & ((1 << REF_BITS) - 1)] = False
    first = 0
    for table in read_piece(run.linked(DOCUMENT), f"{DOCUMENT}/members/{part:05d}", 0, indexes.DOCUMENTS.names):
        yield table.filter(pa.array(kept[first : first + table.num_rows])).select(indexes.DOCUMENTS.names)
        first += table.num_rows


def _write_entry(client: Client, work: str, config: CurationConfig, against: dict[str, str]) -> None:
    run = load_run(work)
    plan = run.plan
    written = each(client, write_survivors, run, len(plan.parts), work)
    files: dict[str, list[indexes.IndexFile]] = {}
    for part in written:
        for level, file in part["files"].items():
            files.setdefault(level, []).append(indexes.IndexFile.model_validate(file))
    shards = [shard for part in plan.parts for shard in part]
    scheme = indexes.scheme_of(config.dedup)
    total = sum(int(part["sum"], 16) for part in written)
    entry = indexes.Entry(
        snapshot=plan.snapshot,
        key=plan.key,
        scheme=scheme,
        landing=plan.landing,
        shards=shards,
        files=files,
        documents=sum(sum(file.groups.values()) for file in files.get(DOCUMENT, ())),
        earlier=against,
        takedowns=plan.takedowns,
        hash=indexes.entry_hash(plan.snapshot, scheme, total, shards),
    )
    indexes.write_entry(plan.index, entry)


def _table_bytes(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    ordered = sorted(rows, key=lambda row: (row["row"], row["rule"]))
    pq.write_table(pa.Table.from_pylist(ordered, schema=SCHEMA), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def read_duplicates(output: str, shard: Shard) -> dict[int, dict[str, Any]]:
    """Row → its duplicate record, for one shard."""
    store, name = open_store(output).sub("duplicates"), f"{shard.id}.parquet"
    if not store.exists(name):
        return {}
    with store.open(name) as stream:
        return {item["row"]: item for item in read_table(stream).to_pylist()}


def read_summary(store: Store) -> dict[str, Any]:
    """The clustering's summary, from the store of a run's output."""
    return orjson.loads(store.read(f"duplicates/{SUMMARY}"))
