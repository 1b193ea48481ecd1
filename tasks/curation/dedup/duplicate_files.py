"""The clustering step: `duplicates/<shard>.parquet` for each shard that has documents to drop, and a summary.

Every step below it is a piece of work per part (`pieces.py`), done by the workers; here is only their order. A killed
run finds its finished pieces again; the work folder is deleted when the summary is written.
"""

from collections import Counter
from collections.abc import Iterator
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
from tasks.curation.dedup import index as indexes
from tasks.curation.dedup import passage_files, walk
from tasks.curation.dedup.levels import each, find_duplicates
from tasks.curation.dedup.members import write_members
from tasks.curation.dedup.passage_files import find_passages
from tasks.curation.dedup.pieces import read_piece, read_status
from tasks.curation.dedup.plan import DOCUMENT, NAME, REF_BITS, Plan, Run, cut_into_parts, load_run
from tasks.curation.dedup.takedown import RULE as TAKEN_DOWN
from tasks.curation.dedup.takedown import taken_down
from tasks.curation.signal_files import read_signals, signals_key
from tasks.curation.signal_files import read_status as signals_status

SCHEMA_VERSION = 2
SUMMARY = "summary.json"
CODE_VERSIONS = (SCHEMA_VERSION, walk.CODE_VERSION, passage_files.CODE_VERSION)
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
    keys = sorted([shard.key, shard.id, signals_key(shard, config)] for shard in manifest.shards)
    return content_hash(["clusters", *CODE_VERSIONS, config.hash, keys, *known])[:32]


def cluster(
    manifest: Manifest, config: CurationConfig, output: str, client: Client, index: str | None = None
) -> dict[str, Any]:
    """Find the duplicates of a whole run and write them by shard. Returns the summary.

    With an index, documents are duplicates of survivors of earlier snapshots, too, and this one gets an entry.
    """
    store = open_store(output).sub("duplicates")
    gone = taken_down(index or output)
    earlier = indexes.read_entries(index, manifest.snapshot) if index else {}
    against = {date: entry.hash for date, entry in earlier.items()}
    indexes.check_scheme(index or "", earlier.values(), config.dedup)
    key = clusters_key(manifest, config, [sorted(gone.items()), against, bool(index)])
    if store.exists(SUMMARY):
        summary = orjson.loads(store.read(SUMMARY))
        current = summary["key"] == key and all(store.size(name) == size for name, size in summary["files"].items())
        if current and (not index or indexes.has_entry(index, manifest.snapshot, key)):
            return {**summary, "reused": True}
        store.delete(SUMMARY)  # from here on the files are not to be believed
    for old in list(store.list("work/")):
        if not old.key.startswith(f"work/{key}/"):
            store.delete(old.key)
    work = join(store.uri, "work", key)
    plan = Plan(
        key=key,
        output=open_store(output).uri,
        landing=manifest.landing,
        snapshot=manifest.snapshot,
        curation=manifest.curation,
        parts=_parts(manifest, config, output),
        earlier=indexes.earlier_parts(index, earlier.values(), config.dedup.memory_budget << 20) if index else [],
        takedowns=sorted(gone),
        index=index or "",
    )
    open_store(work).write(NAME, to_json(plan.model_dump()))
    found = find_duplicates(client, work, DOCUMENT, write_members)
    merged = each(client, write_duplicates, load_run(work), len(plan.parts), work, gone)
    cut, passages = find_passages(client, work)
    files = {name: size for part in (*merged, *cut) for name, size in part["files"].items()}
    for old in list(store.list()):
        if "/" not in old.key and old.key not in files:
            store.delete(old.key)
    if index:
        _write_entry(index, plan, config, against, merged)
    summary = {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "files": files,
        "documents": sum(part["documents"] for part in merged),
        "duplicates": dict(sum((Counter(part["rules"]) for part in merged), Counter())),
        **found,
        **passages,
        "earlier_snapshots": sorted(against),
    }
    store.write(SUMMARY, to_json(summary))
    for old in list(store.list("work/")):
        store.delete(old.key)
    return {**summary, "reused": False}


def _parts(manifest: Manifest, config: CurationConfig, output: str) -> list[list[Shard]]:
    counts = [(signals_status(output, shard, config) or {"documents": 0})["documents"] for shard in manifest.shards]
    return cut_into_parts(manifest.shards, counts, config.dedup.memory_budget << 20)


def write_duplicates(part: int, work: str, gone: dict[str, str]) -> dict[str, Any]:
    """`duplicates/<shard>.parquet` of a part's shards; with an index, the part's survivors."""
    run = load_run(work)
    name = f"{DOCUMENT}/merged/{part:05d}.json"
    store = open_store(run.plan.output).sub("duplicates")
    if run.store.exists(name):
        finished = orjson.loads(run.store.read(name))
        if all(store.size(file) == size for file, size in finished["files"].items()):
            return finished
    pieces = [
        table
        for other in range(run.parts(DOCUMENT))
        for table in read_piece(run.store, f"{DOCUMENT}/decided/{other:05d}", part)
    ]
    decided = pa.concat_tables([walk.DECIDED.empty_table(), *pieces])
    facts: dict[str, Any] = {"files": {}, "rules": {}, "survivors": None}
    rules: Counter[str] = Counter()
    for number, shard in enumerate(run.shards(part)):
        rows = _rows(run, decided.filter(pa.array(decided["shard"].to_numpy() == number)))
        rules.update(row["rule"] for row in rows)
        rows += _taken_down(run, shard, gone)
        if rows:
            data = _table_bytes(rows)
            store.write(f"{shard.id}.parquet", data)
            facts["files"][f"{shard.id}.parquet"] = len(data)
    facts["rules"] = dict(rules)
    status = read_status(run.store, f"{DOCUMENT}/bands/{part:05d}")
    facts["documents"] = status["units"] if status else 0
    if run.plan.index:
        lost = np.sort(decided["ref"].to_numpy() & ((1 << REF_BITS) - 1))
        file, total = indexes.write_survivors(
            open_store(run.plan.index),
            f"{run.plan.snapshot}/{run.plan.key[:16]}-{part:05d}.parquet",
            _survivors(run, part, lost),
        )
        facts["survivors"] = {"file": file.model_dump(mode="json"), "sum": f"{total:032x}"}
    run.store.write(name, to_json(facts))
    return facts


def _rows(run: Run, decided: pa.Table) -> list[dict[str, Any]]:
    rows = []
    for item in decided.to_pylist():
        twin_part = item["twin"] >> REF_BITS
        earlier = twin_part - len(run.plan.parts)
        rows.append(
            {
                "row": item["row"],
                "rule": "duplicate_exact" if item["exact"] else "duplicate_near",
                "similarity": item["similarity"],
                "twin_id": item["twin_id"],
                "twin_shard": run.shards(twin_part)[item["twin_shard"]].key,
                "twin_row": item["twin_row"],
                "twin_snapshot": run.plan.earlier[earlier].snapshot if earlier >= 0 else None,
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


def _survivors(run: Run, part: int, lost: np.ndarray) -> Iterator[pa.Table]:
    """The part's members but for those at the positions `lost`. Shards count from the run's first."""
    first, before = 0, sum(len(shards) for shards in run.plan.parts[:part])
    for table in read_piece(run.store, f"{DOCUMENT}/members/{part:05d}", 0):
        kept = np.ones(table.num_rows, dtype=bool)
        kept[lost[(lost >= first) & (lost < first + table.num_rows)] - first] = False
        first += table.num_rows
        survivors = table.select(indexes.SURVIVORS.names).filter(pa.array(kept))
        place = survivors.schema.get_field_index("shard")
        yield survivors.set_column(place, "shard", pa.array(survivors["shard"].to_numpy() + np.int32(before)))


def _write_entry(
    index: str, plan: Plan, config: CurationConfig, against: dict[str, str], merged: list[dict[str, Any]]
) -> None:
    files = [indexes.IndexFile.model_validate(part["survivors"]["file"]) for part in merged]
    shards = [shard for part in plan.parts for shard in part]
    scheme = indexes.scheme_of(config.dedup)
    total = sum(int(part["survivors"]["sum"], 16) for part in merged)
    entry = indexes.Entry(
        snapshot=plan.snapshot,
        key=plan.key,
        scheme=scheme,
        landing=plan.landing,
        shards=shards,
        files=files,
        documents=sum(sum(file.groups.values()) for file in files),
        earlier=against,
        takedowns=plan.takedowns,
        hash=indexes.entry_hash(plan.snapshot, scheme, total, shards),
    )
    indexes.write_entry(index, entry)


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
