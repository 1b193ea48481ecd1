"""Verdicts and curated text of one shard, and the counts that must add up."""

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import content_hash, withdraw
from tasks.corpus.document import REMEDIES, Document, parse_record
from tasks.corpus.manifest import Shard
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store, to_json
from tasks.curation.config import CurationConfig
from tasks.curation.dedup.cut_files import SPAN, read_cuts
from tasks.curation.dedup.duplicate_files import read_duplicates
from tasks.curation.dedup.takedown import RULE as TAKEN_DOWN
from tasks.curation.rules import REASONS, Reason, failed_rules
from tasks.curation.signal_files import RULED, read_status, signal_batches, signals_key
from tasks.curation.signals import Span, cut
from tasks.curation.text.normalise import normalise
from tasks.errors import ConservationError, DataError

SCHEMA_VERSION = 2
CODE_VERSION = 2  # raise when verdicts or curated text may change
BATCH = 512
REMEDY_MARK = "; remedy: "
Clustered = tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]  # row → its duplicate record; its cuts

VERDICTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source_id", pa.string()),
        ("source", pa.string()),
        ("shard", pa.string()),
        ("shard_checksum", pa.string()),
        ("row", pa.int64()),
        ("occurrence", pa.int64()),
        ("byte_offset", pa.int64()),
        ("verdict", pa.string()),
        ("reasons", REASONS),
        ("twin_id", pa.string()),
        ("similarity", pa.float64()),
        ("level", pa.string()),
        ("language", pa.string()),
        ("kind", pa.string()),
        ("raw_bytes", pa.int64()),
        ("removed_bytes", pa.int64()),
        ("added_bytes", pa.int64()),
        ("written_bytes", pa.int64()),
        ("spans", pa.list_(SPAN)),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
CURATED = pa.schema(
    [
        ("doc_id", pa.string()),
        ("text", pa.string()),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("url", pa.string()),
        ("timestamp", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("kind", pa.string()),
        ("shard", pa.string()),
        ("shard_checksum", pa.string()),
        ("row", pa.int64()),
        ("occurrence", pa.int64()),
        ("extra", pa.string()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


class Kept(NamedTuple):
    """What is written of a kept document."""

    doc_id: str
    spans: list[Span]
    written_bytes: int
    language: str
    kind: str
    language_score: float


def write_shard_verdicts(shard: Shard, landing: str, output: str, config_json: dict[str, Any]) -> dict[str, Any]:
    """Decide one shard: `verdicts/<id>.parquet`, `curated/<id>.parquet`, counts in `status/<id>.json`.

    Returns the status. Nothing is done when a status with the same content key is there already.
    """
    config = CurationConfig.model_validate(config_json)
    store = open_store(output)
    finished = read_verdict_status(output, shard, config) if shard.checksum else None
    if finished:
        return {**finished, "reused": True, "rewritten": False}
    clustered = _read_clustered(output, shard)
    name, key = f"status/{shard.id}.json", _key(shard, config, clustered)
    before: dict[str, Any] = orjson.loads(store.read(name)) if store.exists(name) else {"key": None}
    if before["key"] != key:
        withdraw(output)  # from here on the files are not to be believed; of the same key they stay the same
        store.delete(name)
    begun = time.monotonic()
    kept: dict[int, Kept] = {}
    decided: list[pa.Table] = []
    signals_status = read_status(output, shard, config) or {"tails": []}
    counted = count(shard, _decide(shard, config, output, clustered, kept, decided), signals_status["tails"])
    curated, text_key = f"curated/{shard.id}.parquet", _text_key(shard, config, kept)
    same_text = before.get("text_key") == text_key and store.size(curated) == before["sizes"][curated]
    hashes, sizes = {}, {}
    if same_text:
        hashes[curated], sizes[curated] = before["files"][curated], before["sizes"][curated]
    with tempfile.TemporaryDirectory(prefix="athanor-") as folder:
        files = {f"verdicts/{shard.id}.parquet": _parquet(Path(folder) / "verdicts", VERDICTS, decided)}
        if not same_text:
            files[curated] = _parquet(Path(folder) / "curated", CURATED, _curated(shard, landing, config, kept))
        for file, path in files.items():
            with path.open("rb") as stream:
                hashes[file] = hashlib.file_digest(stream, "sha256").hexdigest()
            sizes[file] = path.stat().st_size
            store.upload(path, file)
    status = {
        **counted,
        "key": key,
        "text_key": text_key,
        "files": hashes,
        "sizes": sizes,
        "seconds": round(time.monotonic() - begun, 3),
    }
    store.write(name, to_json(status))
    return {**status, "reused": False, "rewritten": not same_text}


def _read_clustered(output: str, shard: Shard) -> Clustered:
    return read_duplicates(output, shard), read_cuts(output, shard)


def _key(shard: Shard, config: CurationConfig, clustered: Clustered) -> str:
    found = [sorted(rows.items()) for rows in clustered]
    return content_hash(["verdicts", CODE_VERSION, shard.key, signals_key(shard, config), config.hash, *found])[:32]


def _text_key(shard: Shard, config: CurationConfig, kept: dict[int, Kept]) -> str:
    """Content key of the curated text: which rows are kept, and what is cut from them. Thresholds play no part."""
    rows = [[row, [[span.start, span.end] for span in kept[row].spans]] for row in sorted(kept)]
    return content_hash(["text", CODE_VERSION, shard.key, signals_key(shard, config), rows])[:32]


def read_verdict_status(output: str, shard: Shard, config: CurationConfig) -> dict[str, Any] | None:
    """A shard's status; None when its verdicts are missing, of another configuration, or not of the size written."""
    store, name = open_store(output), f"status/{shard.id}.json"
    if not store.exists(name):
        return None
    status = orjson.loads(store.read(name))
    current = status["key"] == _key(shard, config, _read_clustered(output, shard))
    return status if current and all(store.size(file) == size for file, size in status["sizes"].items()) else None


def _decide(
    shard: Shard,
    config: CurationConfig,
    output: str,
    clustered: Clustered,
    kept: dict[int, Kept],
    decided: list[pa.Table],
) -> Iterator[dict[str, Any]]:
    """Every row's verdict, in order. Fills `kept` by row, and `decided`, the verdicts as tables of BATCH rows."""
    columns = ["row", "byte_offset", "doc_id", "source_id", "source", "fault", "fault_detail", "language", "kind"]
    columns += ["raw_bytes", "normalised_bytes", "cut_bytes", "spans", "language_score"]
    for part in signal_batches(output, shard, config, RULED, BATCH):
        rows = part.select(columns).to_pylist()
        verdicts = [
            _verdict(shard, config, row, failed, *(found.get(row["row"]) for found in clustered))
            for row, failed in zip(rows, failed_rules(part, config), strict=True)
        ]
        decided.append(pa.Table.from_pylist(verdicts, schema=VERDICTS))
        for row, item in zip(rows, verdicts, strict=True):
            if item["verdict"] == "kept":
                spans = [Span(span["start"], span["end"], span["rule"]) for span in item["spans"]]
                place = (item["doc_id"], spans, item["written_bytes"])
                kept[item["row"]] = Kept(*place, item["language"], item["kind"], row["language_score"])
        yield from verdicts


def _verdict(
    shard: Shard,
    config: CurationConfig,
    row: dict[str, Any],
    failed: list[Reason],
    twin: dict[str, Any] | None,
    cut_out: dict[str, Any] | None,
) -> dict[str, Any]:
    reasons = list(failed)
    if row["fault"]:
        detail = f"{row['fault_detail']}{REMEDY_MARK}{REMEDIES[row['fault']]}"
        reasons.append({"rule": row["fault"], "value": None, "threshold": None, "detail": detail})
    if twin and twin["rule"] == TAKEN_DOWN:
        reasons.append({"rule": TAKEN_DOWN, "value": None, "threshold": None, "detail": twin["detail"]})
    elif twin:
        where = f" in snapshot {twin['twin_snapshot']}" if twin["twin_snapshot"] else ""
        detail = f"survivor: row {twin['twin_row']} of {twin['twin_shard']}{where}"
        threshold = 1.0 if twin["rule"] == "duplicate_exact" else config.dedup.threshold
        reasons.append({"rule": twin["rule"], "value": twin["similarity"], "threshold": threshold, "detail": detail})
    least = config.dedup.min_characters
    if cut_out and not reasons and cut_out["left"] < least:
        reasons.append(
            {
                "rule": "remainder_too_short",
                "value": float(cut_out["left"]),
                "threshold": float(least),
                "detail": "characters left when passages that stand in other documents are cut",
            }
        )
    verdict = "quarantined" if row["fault"] else "dropped" if reasons else "kept"
    grown = (row["normalised_bytes"] or 0) - row["raw_bytes"]
    kept = verdict == "kept"
    cut_bytes = cut_out["removed_bytes"] if cut_out else row["cut_bytes"]
    removed = max(-grown, 0) + cut_bytes if kept else 0
    added = max(grown, 0) if kept else 0
    return {
        "doc_id": row["doc_id"],
        "source_id": row["source_id"],
        "source": row["source"],
        "shard": shard.key,
        "shard_checksum": shard.checksum,
        "row": row["row"],
        "occurrence": shard.occurrence,
        "byte_offset": row["byte_offset"],
        "verdict": verdict,
        "reasons": reasons,
        "twin_id": twin["twin_id"] if twin else None,
        "similarity": twin["similarity"] if twin else None,
        "level": "document" if twin and twin["twin_id"] else None,
        "language": row["language"],
        "kind": row["kind"],
        "raw_bytes": row["raw_bytes"],
        "removed_bytes": removed,
        "added_bytes": added,
        "written_bytes": row["raw_bytes"] - removed + added if kept else 0,
        "spans": (cut_out["spans"] if cut_out else _line_spans(row)) if kept else [],
    }


def _line_spans(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**span, "level": "line"} for span in row["spans"] or []]


def _curated(shard: Shard, landing: str, config: CurationConfig, kept: dict[int, Kept]) -> Iterator[pa.Table]:
    """Curated rows as tables of BATCH rows at most, in the shard's order."""
    rows = _curated_rows(shard, landing, config, kept)
    while batch := list(islice(rows, BATCH)):
        yield pa.Table.from_pylist(batch, schema=CURATED)


def _curated_rows(
    shard: Shard, landing: str, config: CurationConfig, kept: dict[int, Kept]
) -> Iterator[dict[str, Any]]:
    """Curated rows in the shard's order. Raises when the shard is no longer what its signals were computed from."""
    written = 0
    items = read_shard(open_store(landing), shard.key, config.max_record_bytes) if kept else iter(())
    for item in items:
        if not isinstance(item, Row) or item.index not in kept:
            continue
        verdict, document = kept[item.index], parse_record(item.record, shard.source)
        if not isinstance(document, Document) or document.doc_id != verdict.doc_id:
            raise DataError(f"{shard.key}, row {item.index}: its text changed since its signals were computed")
        text = cut(normalise(document.text), verdict.spans)
        if len(text.encode()) != verdict.written_bytes:
            raise ConservationError(
                f"{shard.key}, row {item.index}: {len(text.encode())} bytes to write, but raw − removed + added is "
                f"{verdict.written_bytes}"
            )
        written += 1
        yield {
            "doc_id": document.doc_id,
            "text": text,
            "source": document.source,
            "source_id": document.source_id,
            "url": document.url,
            "timestamp": document.timestamp,
            "language": verdict.language,
            "language_score": verdict.language_score,
            "kind": verdict.kind,
            "shard": shard.key,
            "shard_checksum": shard.checksum,
            "row": item.index,
            "occurrence": shard.occurrence,
            "extra": document.extra,
        }
    if written != len(kept):
        raise ConservationError(f"{shard.key}: {len(kept)} documents kept, but {written} found when writing")


def _parquet(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> Path:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table)
    return path


def count(shard: Shard, verdicts: Iterable[dict[str, Any]], tails: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of one shard, in documents and bytes, and what an operator has to mend."""
    documents: Counter[str] = Counter()
    bytes_: Counter[str] = Counter()
    reasons: dict[str, dict[str, int]] = {}
    cuts: dict[str, dict[str, int]] = {}
    parts: dict[str, dict[str, dict[str, int]]] = {"languages": {}, "sources": {}, "kinds": {}}
    problems: dict[str, dict[str, Any]] = {}
    for item in verdicts:
        _note_problem(problems, shard, item)
        verdict, size = item["verdict"], item["raw_bytes"]
        documents["read"] += 1
        bytes_["read"] += size
        documents[verdict] += 1
        bytes_[verdict] += size
        bytes_["written"] += item["written_bytes"]
        for name, column in (("languages", "language"), ("sources", "source"), ("kinds", "kind")):
            part = parts[name].setdefault(item[column] or "none", {"kept": 0, "dropped": 0, "quarantined": 0})
            part[verdict] += 1
        for span in item["spans"]:
            if span["level"] != "line":
                entry = cuts.setdefault(span["rule"], {"spans": 0, "bytes": 0})
                entry["spans"] += 1
                entry["bytes"] += span["bytes"]
        for rule in {reason["rule"] for reason in item["reasons"]}:
            entry = reasons.setdefault(rule, {"documents": 0, "bytes": 0})
            entry["documents"] += 1
            entry["bytes"] += size
    return {
        "schema_version": SCHEMA_VERSION,
        "shard": shard.key,
        **{name: documents[name] for name in ("read", "kept", "dropped", "quarantined")},
        "bytes": {name: bytes_[name] for name in ("read", "kept", "dropped", "quarantined", "written")},
        "unreadable_bytes": sum(tail["size"] for tail in tails),
        "unreadable": len(tails),
        "reasons": reasons,
        "cuts": cuts,
        **parts,
        "problems": [*problems.values(), *_unread(shard, tails)],
    }


def _note_problem(found: dict[str, dict[str, Any]], shard: Shard, item: dict[str, Any]) -> None:
    """What an operator has to mend: one entry a kind of fault, with how many rows, the first of them and the remedy."""
    if item["verdict"] == "quarantined":
        fault = item["reasons"][0]
        what, _, remedy = fault["detail"].partition(REMEDY_MARK)
        entry = found.setdefault(
            fault["rule"],
            {
                "shard": shard.key,
                "rows": 0,
                "row": item["row"],
                "offset": item["byte_offset"],
                "what": f"{fault['rule']}: {what}",
                "remedy": remedy,
            },
        )
        entry["rows"] += 1


def _unread(shard: Shard, tails: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What could not be read at all, once each."""
    found = {
        (tail["offset"], tail["detail"]): {
            "shard": shard.key,
            "rows": 0,
            "row": None,
            "offset": tail["offset"],
            "what": f"{tail['reason']}: {tail['detail']}; {tail['size']} bytes of the file not read",
            "remedy": REMEDIES[tail["reason"]],
        }
        for tail in tails
    }
    return list(found.values())
