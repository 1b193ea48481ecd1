"""The signals sidecar: one Parquet row a row of the shard, named by a hash of all that decides its content."""

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import content_hash
from tasks.corpus.document import Document, Fault, parse_record
from tasks.corpus.manifest import Shard
from tasks.corpus.shards import BadRow, BadTail, Row, read_shard
from tasks.corpus.storage import open_store, to_json
from tasks.curation import signals
from tasks.curation.config import CurationConfig
from tasks.curation.shingles import signature

SCHEMA_VERSION = 1
CODE_VERSION = 1  # raise when the sidecar's content may change
SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("rule", pa.string())]))
BATCH = 512

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
    """Content key of a shard's signals."""
    return content_hash(
        ["signals", CODE_VERSION, signals.CODE_VERSION, shard.checksum or shard.key, shard.source, config.signals_hash]
    )[:32]


def write_signals(shard: Shard, landing: str, output: str, config_json: dict[str, Any]) -> dict[str, Any]:
    """Measure one shard and write `signals/<key>.parquet`, then its status `signals/<key>.json`.

    Returns the status: `documents`, `faults`, `raw_bytes` (UTF-8 bytes of raw text), `tails` (what could not be read),
    `seconds`, `reused`. A shard whose status is there already is not read again.
    """
    config = _config(orjson.dumps(config_json))
    store, key = open_store(output).sub("signals"), signals_key(shard, config)
    if shard.checksum and store.exists(f"{key}.json"):
        return {**orjson.loads(store.read(f"{key}.json")), "reused": True}
    begun = time.monotonic()
    rows, tails = [], []
    for item in read_shard(open_store(landing), shard.key, config.max_record_bytes):
        if isinstance(item, BadTail):
            tails.append({"offset": item.offset, "size": item.size, "reason": item.reason, "detail": item.detail})
        else:
            rows.append(_measured(item, shard, config))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
        for batch in _batches(rows):
            writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
    store.write(f"{key}.parquet", sink.getvalue().to_pybytes())
    status = {
        "schema_version": SCHEMA_VERSION,
        "shard": shard.key,
        "checksum": shard.checksum,
        "documents": len(rows),
        "faults": sum(row.get("fault") is not None for row in rows),
        "raw_bytes": sum(row["raw_bytes"] for row in rows),
        "tails": tails,
        "seconds": round(time.monotonic() - begun, 3),
    }
    store.write(f"{key}.json", to_json(status))
    return {**status, "reused": False}


@lru_cache(maxsize=8)
def _config(data: bytes) -> CurationConfig:
    return CurationConfig.model_validate(orjson.loads(data))


def _batches(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _measured(item: Row | BadRow, shard: Shard, config: CurationConfig) -> dict[str, Any]:
    """One row of the sidecar."""
    out: dict[str, Any] = {"row": item.index, "byte_offset": item.offset, "raw_bytes": 0, "source": shard.source}
    if isinstance(item, BadRow):
        return {**out, "fault": item.reason, "fault_detail": item.detail}
    document = parse_record(item.record, shard.source)
    if isinstance(document, Document) and len(document.text) > config.max_characters:
        detail = f"{len(document.text)} characters; the limit is {config.max_characters}"
        fault = Fault("document_too_large", detail)
        return {**out, **_given(document), "fault": fault.reason, "fault_detail": fault.detail}
    if isinstance(document, Fault):
        text = item.record.get("text")
        size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
        return {**out, "raw_bytes": size, "fault": document.reason, "fault_detail": document.detail}
    measured = signals.measure(document.text, document.kind, config)
    return {
        **out,
        **_given(document),
        "language": measured.language,
        "kind": measured.kind,
        "normalised_bytes": len(measured.text.encode()),
        "cut_bytes": sum(len(measured.text[span.start : span.end].encode()) for span in measured.spans),
        "nothing_left": bool(measured.spans) and not signals.cut(measured.text, measured.spans).strip(),
        "spans": [{"start": span.start, "end": span.end, "rule": span.rule} for span in measured.spans],
        "signature": signature(measured.text, config.dedup).tobytes(),
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
        return pq.read_table(stream, columns=columns)


def read_status(output: str, shard: Shard, config: CurationConfig) -> dict[str, Any] | None:
    """A shard's status record; None when its signals are not finished."""
    store, name = open_store(output).sub("signals"), f"{signals_key(shard, config)}.json"
    return orjson.loads(store.read(name)) if store.exists(name) else None
