"""Tables of a curated corpus: its counts, its shards' counts, and a sample of its documents."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.artifact import Artifact, unchanged
from tasks.corpus.parquet import open_parquet, read_batches
from tasks.corpus.storage import Store, join, open_store
from tasks.errors import DataError
from tasks.gates.frames import SAMPLE_ROWS, Records, Subject, read_object, seeded, share, shown_text, text_measures

SAMPLE_FILES = 64
FOOTER_THREADS = 16  # Parquet footers are small and far away: reading them waits rather than works
BATCH_ROWS = 256
COUNTS = ("read", "kept", "dropped", "quarantined")
COLUMNS = ["doc_id", "text", "source", "language", "language_score", "kind", "shard", "row"]


def read_corpus(uri: str) -> Subject:
    """Views `summary` (one row), `shards` (a row each, all of them), `documents` (up to SAMPLE_ROWS).

    Raises DataError when the folder holds no finished corpus, or one that is replaced while it is read.
    """
    with unchanged(uri) as artifact:
        report, store = read_object(join(uri, "report.json")), open_store(uri)
        files = {entry.key: entry.size for entry in store.list("curated/") if entry.key.endswith(".parquet")}
        rows = _rows_of(store, sorted(files))
        views = {
            "summary": [{**summary(report), **_files_summary(artifact, files), "rows_written": sum(rows.values())}],
            "shards": [shard_row(shard) for shard in report.get("shards", [])],
            "documents": _sample(store, rows, artifact.hash),
        }
    return Subject(artifact.hash, views)


def summary(report: dict[str, Any]) -> dict[str, Any]:
    """One row of a report's totals; what the report lacks is left out, so that its absence is seen."""
    shards, clusters = report.get("shards", []), report.get("clusters", {})
    row = {**_counts(report), "shards": len(shards), "problems": report.get("problems_total")}
    row["left_out"] = len(report.get("left_out", []))
    for name in COUNTS:
        row[f"{name}_not_in_shards"] = report.get(name, 0) - sum(shard.get(name, 0) for shard in shards)
    for name in ("sources", "languages"):
        row[name] = sum(part.get("kept", 0) > 0 for part in report.get(name, {}).values())
    duplicates = sum(clusters.get("duplicates", {}).values())
    row["duplicate_share"] = share(duplicates, clusters.get("documents", 0))
    return row


def shard_row(shard: dict[str, Any]) -> dict[str, Any]:
    """One row of a shard's counts."""
    return {"shard": shard.get("shard"), **_counts(shard)}


def _counts(counts: dict[str, Any]) -> dict[str, Any]:
    """Documents and bytes of a report or of one shard, their differences and shares."""
    row = {name: counts[name] for name in (*COUNTS, "unreadable", "unreadable_bytes") if name in counts}
    sizes = counts.get("bytes", {})
    row.update({f"{name}_bytes": sizes[name] for name in (*COUNTS, "written") if name in sizes})
    if set(COUNTS) <= row.keys():
        row["difference"] = row["read"] - row["kept"] - row["dropped"] - row["quarantined"]
        row["kept_share"] = share(row["kept"], row["read"])
        row["quarantined_share"] = share(row["quarantined"], row["read"]) or 0.0
    if set(COUNTS) <= sizes.keys():
        row["bytes_difference"] = sizes["read"] - sizes["kept"] - sizes["dropped"] - sizes["quarantined"]
        unread = counts.get("unreadable_bytes", 0)
        row["unreadable_share"] = share(unread, sizes["read"] + unread) or 0.0
    return row


def _files_summary(artifact: Artifact, files: dict[str, int]) -> dict[str, int]:
    listed = {key: entry.size for key, entry in artifact.files.items() if key.startswith("curated/")}
    return {
        "files": len(files),
        "files_missing": sum(files.get(key) != size for key, size in listed.items()),
        "files_not_listed": len(files.keys() - listed.keys()),
    }


def _rows_of(store: Store, keys: list[str]) -> dict[str, int]:
    """Rows of every curated file, from its footer."""

    def count(key: str) -> int:
        with store.open(key) as stream, _readable(store, key):
            return pq.read_metadata(stream).num_rows

    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return dict(zip(keys, pool.map(count, keys), strict=True))


def _sample(store: Store, rows: dict[str, int], seed: str) -> Records:
    """Rows drawn evenly from up to SAMPLE_FILES files, in the order of files and rows."""
    filled = [key for key, count in rows.items() if count]
    chosen = sorted(seeded(seed, "files").sample(filled, min(SAMPLE_FILES, len(filled))))
    places = [(key, row) for key in chosen for row in range(rows[key])]
    drawn = sorted(seeded(seed, "rows").sample(places, min(SAMPLE_ROWS, len(places))))
    wanted: dict[str, set[int]] = {key: set() for key in chosen}
    for key, row in drawn:
        wanted[key].add(row)
    return [record for key in chosen for record in _documents(store, key, wanted[key])]


def _documents(store: Store, key: str, wanted: set[int]) -> Iterator[dict[str, Any]]:
    """The wanted rows of one file. Row groups that hold none of them are not read."""
    with _local_file(store, key) as stream, _readable(store, key):
        file = open_parquet(stream)
        present = [name for name in COLUMNS if name in file.schema_arrow.names]
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if any(row in wanted for row in range(first, first + size)):
                start = first
                for batch in read_batches(file, BATCH_ROWS, groups=[group], columns=present):
                    for offset in range(batch.num_rows):
                        if start + offset in wanted:
                            yield _document(key, start + offset, _record(batch, offset))
                    start += batch.num_rows
            first += size


def _record(batch: pa.RecordBatch, offset: int) -> dict[str, Any]:
    """One row; bytes that are not UTF-8 become lone surrogates, to be counted rather than to stop the gate."""
    record = {}
    for name in batch.schema.names:
        value = batch.column(name)[offset]
        if pa.types.is_string(value.type) and value.is_valid:
            record[name] = value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
        else:
            record[name] = value.as_py()
    return record


def _document(key: str, position: int, record: dict[str, Any]) -> dict[str, Any]:
    """A document as the contract sees it: where it lies, its columns, and measures of its text."""
    row = {"file": key, "position": position, **record}
    if isinstance(record.get("text"), str):
        row |= {**text_measures(record["text"]), "text": shown_text(record["text"])}
    if "kind" in record and "language" in record:
        row["rules"] = "code" if record["kind"] == "code" else record["language"]
    return row


@contextmanager
def _local_file(store: Store, key: str) -> Iterator[BinaryIO | Path]:
    """The file itself when it is local, else a copy for as long as it is read."""
    if (path := store.local(key)) is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
        store.download(key, Path(copy.name))
        yield Path(copy.name)


@contextmanager
def _readable(store: Store, key: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{join(store.uri, key)}: not readable as Parquet: {error}; publish the corpus again") from None
