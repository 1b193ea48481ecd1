"""The clustering step's files: `duplicates/<shard>.parquet` for each shard that has duplicates, and a summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client

from tasks.corpus.artifact import content_hash
from tasks.corpus.document import Document, parse_record
from tasks.corpus.manifest import Manifest, Shard
from tasks.corpus.parquet import read_table
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store, to_json
from tasks.curation import dedup
from tasks.curation.cluster import map_shards
from tasks.curation.config import CurationConfig
from tasks.curation.dedup import Duplicate, Member, find_duplicates
from tasks.curation.rules import failed_rules
from tasks.curation.shingles import shingles
from tasks.curation.signal_files import read_signals, signals_key
from tasks.curation.text import normalise
from tasks.errors import DataError

SCHEMA_VERSION = 1
SUMMARY = "summary.json"
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("rule", pa.string()),
        ("similarity", pa.float64()),
        ("twin_id", pa.string()),
        ("twin_shard", pa.string()),
        ("twin_row", pa.int64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def clusters_key(manifest: Manifest, config: CurationConfig) -> str:
    """Content key of the clustering: all signals, all rules."""
    keys = sorted([shard.key, shard.id, signals_key(shard, config)] for shard in manifest.shards)
    return content_hash(["clusters", dedup.CODE_VERSION, config.hash, keys])[:32]


def cluster(manifest: Manifest, config: CurationConfig, output: str, client: Client) -> dict[str, Any]:
    """Find the duplicates of a whole run and write them by shard. Returns the summary."""
    store, key = open_store(output).sub("duplicates"), clusters_key(manifest, config)
    if store.exists(SUMMARY):
        summary = orjson.loads(store.read(SUMMARY))
        if summary["key"] == key and all(store.size(name) == size for name, size in summary["files"].items()):
            return {**summary, "reused": True}
        store.delete(SUMMARY)  # from here on the files are not to be believed
    members, signatures = _members(manifest, config, output)
    shards = {shard.id: shard for shard in manifest.shards}

    def shingle_sets(wanted: Sequence[Member]) -> Mapping[Member, np.ndarray]:
        return _shingle_sets(wanted, shards, manifest.landing, config, client)

    duplicates = find_duplicates(members, signatures, config.dedup, shingle_sets)
    by_shard: dict[str, list[Duplicate]] = {}
    for duplicate in duplicates:
        by_shard.setdefault(duplicate.member.shard, []).append(duplicate)
    for old in list(store.list()):
        if old.key.removesuffix(".parquet") not in by_shard:
            store.delete(old.key)
    files = {}
    for shard_id, found in sorted(by_shard.items()):
        data = _table_bytes(found, shards)
        store.write(f"{shard_id}.parquet", data)
        files[f"{shard_id}.parquet"] = len(data)
    sizes = Counter(Counter(duplicate.survivor for duplicate in duplicates).values())
    summary = {
        "schema_version": SCHEMA_VERSION,
        "key": key,
        "files": files,
        "documents": len(members),
        "duplicates": dict(Counter(duplicate.rule for duplicate in duplicates)),
        "clusters": sum(sizes.values()),
        "cluster_sizes": {str(size + 1): count for size, count in sorted(sizes.items())},
    }
    store.write(SUMMARY, to_json(summary))
    return {**summary, "reused": False}


def _members(manifest: Manifest, config: CurationConfig, output: str) -> tuple[list[Member], np.ndarray]:
    """Documents that pass every rule, and their signatures."""
    members: list[Member] = []
    packed: list[bytes] = []
    for shard in manifest.shards:
        table = read_signals(output, shard, config)
        reasons = failed_rules(table, config)
        faults = table["fault"].to_pylist()
        wanted = [n for n, (fault, failed) in enumerate(zip(faults, reasons, strict=True)) if not fault and not failed]
        columns = ["row", "doc_id", "characters", "source", "source_id", "signature"]
        for item in table.select(columns).take(pa.array(wanted, pa.int64())).to_pylist():
            members.append(
                Member(
                    shard=shard.id,
                    row=item["row"],
                    doc_id=item["doc_id"],
                    characters=int(item["characters"]),
                    source=item["source"],
                    source_id=item["source_id"] or "",
                    checksum=shard.checksum,
                    occurrence=shard.occurrence,
                )
            )
            packed.append(item["signature"])
    signatures = np.frombuffer(b"".join(packed), dtype=np.uint32)
    return members, signatures.reshape(len(members), config.dedup.permutations)


def _shingle_sets(
    wanted: Sequence[Member], shards: Mapping[str, Shard], landing: str, config: CurationConfig, client: Client
) -> dict[Member, np.ndarray]:
    rows_of: dict[str, list[int]] = {}
    for member in wanted:
        rows_of.setdefault(member.shard, []).append(member.row)
    work = [(shards[shard_id], sorted(rows)) for shard_id, rows in sorted(rows_of.items())]
    results, failures = map_shards(client, _sets_of_shard, work, landing, config.model_dump())
    if failures:
        (shard, _), error = failures[0]
        raise DataError(f"{shard.key}: its text could not be read again to verify duplicates: {error}") from error
    sets = {(shard_id, row): values for found in results for shard_id, row, values in found}
    return {member: sets[member.shard, member.row] for member in wanted}


def _sets_of_shard(
    work: tuple[Shard, list[int]], landing: str, config_json: dict[str, Any]
) -> list[tuple[str, int, np.ndarray]]:
    shard, rows = work
    config, wanted = CurationConfig.model_validate(config_json), set(rows)
    out = []
    for item in read_shard(open_store(landing), shard.key, config.max_record_bytes):
        if isinstance(item, Row) and item.index in wanted:
            document = parse_record(item.record, shard.source)
            if isinstance(document, Document):
                out.append((shard.id, item.index, shingles(normalise(document.text), config.dedup)))
    if len(out) != len(wanted):
        raise DataError(f"{shard.key}: {len(wanted) - len(out)} rows are gone since its signals were computed")
    return out


def _table_bytes(duplicates: list[Duplicate], shards: Mapping[str, Shard]) -> bytes:
    rows = [
        {
            "row": duplicate.member.row,
            "rule": duplicate.rule,
            "similarity": duplicate.similarity,
            "twin_id": duplicate.survivor.doc_id,
            "twin_shard": shards[duplicate.survivor.shard].key,
            "twin_row": duplicate.survivor.row,
        }
        for duplicate in sorted(duplicates, key=lambda duplicate: duplicate.member.row)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def read_duplicates(output: str, shard: Shard) -> dict[int, dict[str, Any]]:
    """Row → its duplicate record, for one shard."""
    store, name = open_store(output).sub("duplicates"), f"{shard.id}.parquet"
    if not store.exists(name):
        return {}
    with store.open(name) as stream:
        return {item["row"]: item for item in read_table(stream).to_pylist()}
