"""Reading and writing of shards: JSON lines (plain, gzip, zstd), Parquet, plain text.

A reader never stops at a bad row. It yields what it can read as `Row`, a row it cannot use as `BadRow`, and where a
file cannot be read on, its remainder as `BadTail`. The container is told by its first bytes, not by its name.
"""

import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tasks.corpus.storage import Store
from tasks.errors import ConfigError, StorageError

CHUNK = 1 << 16  # bytes read at a time
BATCH_ROWS = 256  # rows of Parquet decoded at a time
MAX_RECORD_BYTES = 256 << 20
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".txt", ".md")
PACKED = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Row:
    """A record. `index` counts records from 0; `offset` is its byte offset in the unpacked file (-1 in Parquet)."""

    index: int
    offset: int
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is no record. `size` is its length in bytes as stored (0 when unknown)."""

    index: int
    offset: int
    size: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class BadTail:
    """What could not be read: `size` bytes of the file; `offset` is where, in the unpacked stream, reading ended."""

    offset: int
    size: int
    reason: str
    detail: str


Item = Row | BadRow | BadTail


def is_shard(key: str) -> bool:
    """Whether a name is data at all: names that begin with '.' or '_' are markers, by the custom of the field."""
    return not any(part.startswith((".", "_")) for part in key.split("/"))


def stem(key: str) -> tuple[str, str]:
    """File name without and with only its format suffix: `a.jsonl.gz` → (`a`, `.jsonl`)."""
    name = key.rsplit("/", 1)[-1]
    for packed in PACKED:
        name = name.removesuffix(packed)
    head, dot, tail = name.rpartition(".")
    return (head, f".{tail.lower()}") if dot else (name, "")


def read_shard(store: Store, key: str, max_record_bytes: int = MAX_RECORD_BYTES) -> Iterator[Item]:
    """Every row of a shard, in order; never raises for what the file holds."""
    try:
        with store.open(key) as stream:
            head = stream.read(4)
            stream.seek(0, io.SEEK_END)
            size = stream.tell()
            stream.seek(0)
            yield from _read(stream, key, head, size, max_record_bytes)
    except StorageError as error:
        yield BadTail(0, 0, "unreadable_file", str(error))
    except OSError as error:
        yield BadTail(0, 0, "unreadable_file", f"{key}: {error}")


def _read(stream: BinaryIO, key: str, head: bytes, size: int, limit: int) -> Iterator[Item]:
    _, suffix = stem(key)
    if suffix not in SUFFIXES:
        yield BadTail(0, size, "unknown_format", f"suffix {suffix!r}")
    elif head == b"PAR1":
        yield from _read_parquet(stream, size)
    elif suffix == ".parquet":
        yield BadTail(0, size, "corrupt", "not a Parquet file: it does not begin with 'PAR1'")
    elif suffix in (".txt", ".md"):
        yield from _read_text(_unpack(stream, head, size), key, limit)
    else:
        yield from _read_lines(_unpack(stream, head, size), limit)


@dataclass(slots=True)
class _Piece:
    """Unpacked bytes, and how much of the file had been read when they came."""

    data: bytes
    position: int


def _unpack(stream: BinaryIO, head: bytes, size: int) -> Iterator[_Piece | BadTail]:
    """Unpacked pieces of a plain, gzip (several members) or zstd (several and skippable frames) stream."""
    if head[:2] == b"\x1f\x8b":
        yield from _decode(stream, size, lambda: zlib.decompressobj(wbits=31), zlib.error)
    elif head == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50):
        yield from _decode(stream, size, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)
    else:
        position = 0
        while chunk := stream.read(CHUNK):
            position += len(chunk)
            yield _Piece(chunk, position)


def _decode(stream: BinaryIO, size: int, new: Any, error_type: type[Exception]) -> Iterator[_Piece | BadTail]:
    decoder, begun, position = new(), False, 0
    while chunk := stream.read(CHUNK):
        position += len(chunk)
        while chunk:
            try:
                data = decoder.decompress(chunk)
            except error_type as error:
                yield BadTail(-1, size - position + len(chunk), "corrupt", str(error))
                return
            begun = True
            chunk = decoder.unused_data if decoder.eof else b""
            if data:
                yield _Piece(data, position - len(chunk))
            if decoder.eof:
                decoder, begun = new(), False
                if not chunk.strip(b"\0"):  # padding after the last member, as tar and tape leave it
                    chunk = b""
    if begun:
        yield BadTail(-1, 0, "truncated", "the compressed stream ends before its end mark")


def _read_lines(pieces: Iterator[_Piece | BadTail], limit: int) -> Iterator[Item]:
    index, offset, rest, whole, skipped = 0, 0, bytearray(), 0, 0
    for piece in pieces:
        if isinstance(piece, BadTail):
            # What stands after the last line break is half a row: it belongs to the unreadable remainder.
            yield BadTail(offset, max(piece.size, 1), piece.reason, piece.detail)
            return
        rest += piece.data
        *lines, tail = rest.split(b"\n") if b"\n" in piece.data else [rest]
        for line in lines:
            for item in _line(bytes(line), index, offset, skipped, limit):
                index += 1
                yield item
            offset += skipped + len(line) + 1
            skipped = 0
        whole = piece.position if lines else whole
        rest = tail
        if len(rest) > limit:  # keep memory bounded: forget the line's bytes, remember its length
            skipped += len(rest)
            rest = bytearray()
    yield from _line(bytes(rest), index, offset, skipped, limit)


def _line(line: bytes, index: int, offset: int, skipped: int, limit: int) -> Iterator[Row | BadRow]:
    """The row of one line; nothing for a blank line."""
    size = skipped + len(line)
    if offset == 0:
        line = line.removeprefix(b"\xef\xbb\xbf")
    if size > limit:
        yield BadRow(index, offset, size, "record_too_large", f"{size} bytes; the limit is {limit}")
    elif line.strip():
        yield _record(line, index, offset, size)


def _record(line: bytes, index: int, offset: int, size: int) -> Row | BadRow:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as problem:
            return BadRow(index, offset, size, "invalid_utf8", f"at byte {problem.start} of the line")
        reason = "lone_surrogate" if "surrogate" in str(error) else "not_json"
        return BadRow(index, offset, size, reason, str(error))
    if not isinstance(record, dict):
        return BadRow(index, offset, size, "not_an_object", f"found {type(record).__name__}")
    # orjson keeps the last of two equal keys. A cheap count finds the suspects, the slow parser judges them.
    if any(line.count(b'"' + key.encode() + b'"') > 1 for key in record):
        twice = _repeated_key(line)
        if twice:
            return BadRow(index, offset, size, "duplicate_key", f"key {twice!r} stands more than once")
    return Row(index, offset, record)


def _repeated_key(line: bytes) -> str | None:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in items]
        found[:] = [key for key in names if names.count(key) > 1]  # the outermost object is closed last
        return dict(items)

    json.loads(line, object_pairs_hook=pairs)
    return found[0] if found else None


def _read_text(pieces: Iterator[_Piece | BadTail], key: str, limit: int) -> Iterator[Item]:
    data = bytearray()
    for piece in pieces:
        if isinstance(piece, BadTail):
            yield BadTail(0, max(piece.size, len(data), 1), piece.reason, piece.detail)
            return
        data += piece.data
        if len(data) > limit:
            yield BadTail(0, max(len(data), 1), "record_too_large", f"more than {limit} bytes")
            return
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        yield BadRow(0, 0, len(data), "invalid_utf8", f"at byte {error.start}")
        return
    yield Row(0, 0, {"text": text, "id": key})


def _read_parquet(stream: BinaryIO, size: int) -> Iterator[Item]:
    try:
        file = pq.ParquetFile(stream)
    except (pa.ArrowException, OSError) as error:
        yield BadTail(0, size, "corrupt", f"Parquet footer: {error}")
        return
    index = 0
    for group in range(file.metadata.num_row_groups):
        described = file.metadata.row_group(group)
        done = 0
        try:
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group]):
                for record in _records(batch):
                    reason = record.pop("\0reason", None)
                    number = index + done
                    done += 1
                    yield BadRow(number, -1, 0, "invalid_utf8", reason) if reason else Row(number, -1, record)
        except (pa.ArrowException, OSError) as error:
            lost = described.num_rows - done
            yield BadTail(-1, described.total_byte_size, "corrupt", f"row group {group}, last {lost} rows: {error}")
        index += described.num_rows  # rows keep their number even when an earlier group is damaged


def _records(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:  # one bad string spoils the whole batch: decode row by row
        columns = [
            column.cast(pa.large_binary()) if pa.types.is_string(column.type) else column for column in batch.columns
        ]
        return [_decoded(row) for row in pa.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()]


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in row.items():
        try:
            out[name] = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            out["\0reason"] = f"column {name!r}, byte {error.start}"
    return out


def write_shard(path: Path, records: Iterable[dict[str, Any]]) -> int:
    """Write records to `path`, whose suffix names the format. Returns the number of records. Same records, same bytes.

    Raises ConfigError for a suffix that is not `.jsonl`, `.jsonl.gz`, `.jsonl.zst` or `.parquet`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name
    if name.endswith(".parquet"):
        rows = list(records)
        names = sorted({key for row in rows for key in row})
        table = pa.table({key: [_cell(row.get(key)) for row in rows] for key in names})
        pq.write_table(table, path, compression="zstd", row_group_size=1024)
        return len(rows)
    lines = [orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str) for record in records]
    data = b"".join(lines)
    if name.endswith(".jsonl.zst"):
        data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
    elif name.endswith(".jsonl.gz"):
        packer = zlib.compressobj(6, wbits=31)  # no name and no time in the header: same records, same bytes
        data = packer.compress(data) + packer.flush()
    elif not name.endswith(".jsonl"):
        raise ConfigError(f"{path}: unknown shard format; expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    path.write_bytes(data)
    return len(lines)


def _cell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value, default=str).decode()
