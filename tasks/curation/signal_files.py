"""The sidecars of a shard: its signals, one Parquet row a row of the shard, and the passages of its prose.

Each is named by a hash of all that decides its content, and written in one pass over the text.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import content_hash
from tasks.corpus.document import Document, Fault, parse_record
from tasks.corpus.manifest import Shard, checksum
from tasks.corpus.parquet import open_parquet, read_batches, read_table
from tasks.corpus.shards import TEXT_SUFFIXES, BadRow, BadTail, Row, read_shard, stem
from tasks.corpus.storage import open_store, to_json
from tasks.curation import signals
from tasks.curation.config import CurationConfig
from tasks.curation.dedup.shingles import signature
from tasks.curation.passage_signals import CODE_VERSION as PASSAGES_VERSION
from tasks.curation.passage_signals import SCHEMA_VERSION as PASSAGES_SCHEMA
from tasks.curation.passage_signals import SCHEMAS, passage_tables
from tasks.errors import DataError, StorageError

SCHEMA_VERSION = 1
CODE_VERSION = 1  # raise when the sidecar's content may change
SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("rule", pa.string())]))
BATCH, BATCH_CHARACTERS = 512, 1 << 22  # documents measured at a time, and their characters at most
ROWS = 1 << 15  # passages, or documents' signals, read at a time

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

RULED = [name for name in SCHEMA.names if name != "signature"]  # the columns that rules and verdicts read


def signals_key(shard: Shard, config: CurationConfig) -> str:
    """Content key of a shard's signals. The name counts where reading depends on it: its suffix, and all of it for
    plain text (whose id it is)."""
    suffix = stem(shard.key)[1]
    name = shard.key if suffix in TEXT_SUFFIXES or not shard.checksum else suffix
    return content_hash(
        ["signals", CODE_VERSION, signals.CODE_VERSION, shard.checksum, name, shard.source, config.signals_hash]
    )[:32]


def sidecars(shard: Shard, config: CurationConfig) -> dict[str, str]:
    """What is written of a shard: `signals`, and each level of passages → key of its file, without suffix."""
    signals_of = signals_key(shard, config)
    names = {"signals": f"signals/{signals_of}"}
    for level, wanted in config.measuring_passages().items():
        key = content_hash(["passages", PASSAGES_VERSION, PASSAGES_SCHEMA, signals_of, level, wanted])[:32]
        names[level] = f"passages/{key}"
    return names


def write_signals(shard: Shard, landing: str, output: str, config_json: dict[str, Any]) -> dict[str, Any]:
    """Measure one shard: `signals/<key>.parquet`, a file `passages/<key>.parquet` a level, and a status `<key>.json`
    beside each.

    Returns the status: `documents`, `faults`, `raw_bytes` (UTF-8 bytes of raw text), `tails` (what could not be read),
    `seconds`, `reused`. A shard whose status is there already is not read again. Raises DataError when the shard is no
    longer what the inventory saw: nothing may be stored under its content's key then.
    """
    config = _config(orjson.dumps(config_json))
    store = open_store(output)
    if shard.checksum:
        finished = read_status(output, shard, config)
        if finished:
            return {**finished, "reused": True}
        _verify(shard, landing)
    begun = time.monotonic()
    status: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "shard": shard.key, "checksum": shard.checksum}
    with tempfile.TemporaryDirectory(prefix="athanor-") as folder:
        totals, tails = _measure_all(shard, landing, config, Path(folder))
        status |= {**totals, "tails": tails, "seconds": round(time.monotonic() - begun, 3)}
        for name, key in reversed(sidecars(shard, config).items()):  # the signals' own status comes last
            path = Path(folder) / f"{name}.parquet"
            status["size"] = path.stat().st_size
            store.upload(path, f"{key}.parquet")
            store.write(f"{key}.json", to_json(status))
    return {**status, "reused": False}


def _verify(shard: Shard, landing: str) -> None:
    found = checksum(open_store(landing), shard.key)
    if found != shard.checksum:
        raise DataError(f"{shard.key}: changed since the inventory; start a new run, which takes the inventory again")


def _measure_all(
    shard: Shard, landing: str, config: CurationConfig, folder: Path
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Write the sidecars to a folder, batch by batch; returns counts and tails."""
    totals = {"documents": 0, "faults": 0, "raw_bytes": 0}
    tails: list[dict[str, Any]] = []
    batch: list[tuple[dict[str, Any], Document | None]] = []
    characters = 0
    schemas = {"signals": SCHEMA, **{level: SCHEMAS[level] for level in config.measuring_passages()}}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(pq.ParquetWriter(folder / f"{name}.parquet", schema, **_compression(name)))
            for name, schema in schemas.items()
        }

        def write() -> None:
            for name, table in _measured(batch, config).items():
                writers[name].write_table(table)

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
                write()
                batch.clear()
                characters = 0
        write()
    return totals, tails


def _compression(name: str) -> dict[str, Any]:
    """Hashes, of which passages consist, do not compress."""
    return {"compression": "zstd"} | ({} if name == "signals" else {"compression_level": 1, "use_dictionary": False})


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


def _measured(batch: list[tuple[dict[str, Any], Document | None]], config: CurationConfig) -> dict[str, pa.Table]:
    """Rows of the sidecars, by name."""
    documents = [document for _, document in batch if document]
    found = signals.measure_all([(document.text, document.kind) for document in documents], config)
    signatures = [signature(measured.text, config.dedup) for measured in found]
    sketched = iter(zip(found, signatures, strict=True))
    rows = [{**row, **_signals(*next(sketched))} if document else row for row, document in batch]
    numbers = [row["row"] for row, document in batch if document]
    passages = passage_tables(zip(numbers, found, strict=True), config)
    return {"signals": pa.Table.from_pylist(rows, schema=SCHEMA), **passages}


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


def signal_batches(
    output: str, shard: Shard, config: CurationConfig, columns: list[str], rows: int = ROWS
) -> Iterator[pa.Table]:
    """A shard's sidecar in order, at most `rows` rows at a time."""
    name = f"{sidecars(shard, config)['signals']}.parquet"
    with open_store(output).open(name) as stream, open_parquet(stream) as file:
        for batch in read_batches(file, rows, columns=columns):
            yield pa.Table.from_batches([batch])


def read_passages(output: str, shard: Shard, config: CurationConfig, level: str) -> Iterator[pa.Table]:
    """A shard's passages of a level, `paragraphs` or `sentences`, in order of row and place, a batch at a time."""
    with open_store(output).open(f"{sidecars(shard, config)[level]}.parquet") as stream, open_parquet(stream) as file:
        for batch in read_batches(file, ROWS):
            yield pa.Table.from_batches([batch])


def read_status(output: str, shard: Shard, config: CurationConfig) -> dict[str, Any] | None:
    """A shard's status record; None when a sidecar of it is not finished, or not of the size that was written."""
    store, status = open_store(output), None
    for key in reversed(sidecars(shard, config).values()):
        if not store.exists(f"{key}.json"):
            return None
        status = orjson.loads(store.read(f"{key}.json"))
        if store.size(f"{key}.parquet") != status["size"]:
            return None
    return status
