"""The signals sidecar: one Parquet row a row of the shard, named by a hash of all that decides its content."""

import time
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import content_hash
from tasks.corpus.document import Document, Fault, parse_record
from tasks.corpus.manifest import Shard, checksum
from tasks.corpus.parquet import read_table
from tasks.corpus.shards import TEXT_SUFFIXES, BadRow, BadTail, Row, read_shard, stem
from tasks.corpus.storage import open_store, to_json
from tasks.curation import signals
from tasks.curation.config import CurationConfig
from tasks.curation.dedup.shingles import signature
from tasks.errors import DataError, StorageError

SCHEMA_VERSION = 1
CODE_VERSION = 1  # raise when the sidecar's content may change
SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("rule", pa.string())]))
BATCH, BATCH_CHARACTERS = 512, 1 << 22  # documents measured at a time, and their characters at most

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("byte_offset", pa.int64()),
        ("doc_id", pa.string()),
        ("source_id", pa.string()),
        ("source", pa.string()),
        ("fault", pa.string()),
        ("fault_detail", pa.string()),
        ("language", pa.string()),
        ("kind", pa.string()),
        ("raw_bytes", pa.int64()),
        ("normalised_bytes", pa.int64()),
        ("cut_bytes", pa.int64()),
        ("nothing_left", pa.bool_()),
        ("spans", SPANS),
        ("signature", pa.binary()),
        *((name, pa.float64()) for name in (*signals.COUNTS, *signals.SHARES)),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def signals_key(shard: Shard, config: CurationConfig) -> str:
    """Content key of a shard's signals. The name counts where reading depends on it: its suffix, and all of it for
    plain text (whose id it is)."""
    suffix = stem(shard.key)[1]
    name = shard.key if suffix in TEXT_SUFFIXES or not shard.checksum else suffix
    return content_hash(
        ["signals", CODE_VERSION, signals.CODE_VERSION, shard.checksum, name, shard.source, config.signals_hash]
    )[:32]


def write_signals(shard: Shard, landing: str, output: str, config_json: dict[str, Any]) -> dict[str, Any]:
    """Measure one shard and write `signals/<key>.parquet`, then its status `signals/<key>.json`.

    Returns the status: `documents`, `faults`, `raw_bytes` (UTF-8 bytes of raw text), `tails` (what could not be read),
    `seconds`, `reused`. A shard whose status is there already is not read again. Raises DataError when the shard is no
    longer what the inventory saw: nothing may be stored under its content's key then.
    """
    config = _config(orjson.dumps(config_json))
    store, key = open_store(output).sub("signals"), signals_key(shard, config)
    if shard.checksum:
        finished = read_status(output, shard, config)
        if finished:
            return {**finished, "reused": True}
        _verify(shard, landing)
    begun = time.monotonic()
    totals, tails, data = _measure_all(shard, landing, config)
    store.write(f"{key}.parquet", data)
    status = {
        "schema_version": SCHEMA_VERSION,
        "shard": shard.key,
        "checksum": shard.checksum,
        **totals,
        "tails": tails,
        "size": len(data),
        "seconds": round(time.monotonic() - begun, 3),
    }
    store.write(f"{key}.json", to_json(status))
    return {**status, "reused": False}


def _verify(shard: Shard, landing: str) -> None:
    found = checksum(open_store(landing), shard.key)
    if found != shard.checksum:
        raise DataError(f"{shard.key}: changed since the inventory; start a new run, which takes the inventory again")


def _measure_all(
    shard: Shard, landing: str, config: CurationConfig
) -> tuple[dict[str, int], list[dict[str, Any]], bytes]:
    """Counts, tails and the Parquet bytes of a shard's signals, batch by batch."""
    totals = {"documents": 0, "faults": 0, "raw_bytes": 0}
    tails: list[dict[str, Any]] = []
    batch: list[tuple[dict[str, Any], Document | None]] = []
    characters = 0
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
        for item in read_shard(open_store(landing), shard.key, config.max_record_bytes):
            if isinstance(item, BadTail):
                if item.reason == "unreadable_file" and shard.checksum:
                    raise StorageError(f"{shard.key}: could be read at the inventory and now cannot: {item.detail}")
                tails.append({"offset": item.offset, "size": item.size, "reason": item.reason, "detail": item.detail})
                continue
            row, document = _read(item, shard, config)
            totals["documents"] += 1
            totals["faults"] += document is None
            totals["raw_bytes"] += row["raw_bytes"]
            batch.append((row, document))
            characters += len(document.text) if document else 0
            if len(batch) == BATCH or characters > BATCH_CHARACTERS:
                writer.write_table(_measured(batch, config))
                batch, characters = [], 0
        writer.write_table(_measured(batch, config))
    return totals, tails, sink.getvalue().to_pybytes()


@lru_cache(maxsize=8)
def _config(data: bytes) -> CurationConfig:
    return CurationConfig.model_validate(orjson.loads(data))


def _read(item: Row | BadRow, shard: Shard, config: CurationConfig) -> tuple[dict[str, Any], Document | None]:
    """The beginning of one row of the sidecar, and the document to measure; None when there is a fault instead."""
    out: dict[str, Any] = {"row": item.index, "byte_offset": item.offset, "raw_bytes": 0, "source": shard.source}
    if isinstance(item, BadRow):
        return {**out, "fault": item.reason, "fault_detail": item.detail}, None
    document = parse_record(item.record, shard.source)
    if isinstance(document, Document) and len(document.text) > config.max_characters:
        detail = f"{len(document.text)} characters; the limit is {config.max_characters}"
        fault = Fault("document_too_large", detail)
        return {**out, **_given(document), "fault": fault.reason, "fault_detail": fault.detail}, None
    if isinstance(document, Fault):
        text = item.record.get("text")
        size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
        return {**out, "raw_bytes": size, "fault": document.reason, "fault_detail": document.detail}, None
    return {**out, **_given(document)}, document


def _measured(batch: list[tuple[dict[str, Any], Document | None]], config: CurationConfig) -> pa.Table:
    """Rows of the sidecar."""
    documents = [document for _, document in batch if document]
    found = signals.measure_all([(document.text, document.kind) for document in documents], config)
    signatures = [signature(measured.text, config.dedup) for measured in found]
    sketched = iter(zip(found, signatures, strict=True))
    rows = [{**row, **_signals(*next(sketched))} if document else row for row, document in batch]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _signals(measured: signals.Measured, sketch: np.ndarray) -> dict[str, Any]:
    spans = measured.spans
    return {
        "language": measured.language,
        "kind": measured.kind,
        "normalised_bytes": len(measured.text.encode()),
        "cut_bytes": sum(len(measured.text[span.start : span.end].encode()) for span in spans),
        "nothing_left": bool(spans) and not signals.cut(measured.text, spans).strip(),
        "spans": [{"start": span.start, "end": span.end, "rule": span.rule} for span in spans],
        "signature": sketch.tobytes(),
        **measured.values,
    }


def _given(document: Document) -> dict[str, Any]:
    return {
        "doc_id": document.doc_id,
        "source_id": document.source_id,
        "source": document.source,
        "raw_bytes": len(document.text.encode()),
    }


def read_signals(output: str, shard: Shard, config: CurationConfig, columns: list[str] | None = None) -> pa.Table:
    """A shard's sidecar as a table."""
    with open_store(output).sub("signals").open(f"{signals_key(shard, config)}.parquet") as stream:
        return read_table(stream, columns)


def read_status(output: str, shard: Shard, config: CurationConfig) -> dict[str, Any] | None:
    """A shard's status record; None when its signals are not finished, or not of the size that was written."""
    store, key = open_store(output).sub("signals"), signals_key(shard, config)
    if not store.exists(f"{key}.json"):
        return None
    status = orjson.loads(store.read(f"{key}.json"))
    return status if store.size(f"{key}.parquet") == status["size"] else None
