"""Reading and writing of shards: JSON lines (plain, gzip, zstd), Parquet, plain text.

A reader never stops at a bad row. It yields what it can read as `Row`, a row it cannot use as `BadRow`, and where a
file cannot be read on, its remainder as `BadTail`. The container is told by its first bytes, not by its name.
"""

import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from tasks.corpus.parquet import open_parquet, read_batches
from tasks.corpus.storage import Store
from tasks.errors import ConfigError, StorageError

CHUNK = 1 << 16  # bytes read at a time
PACKED_CHUNK = 1 << 11  # bytes unpacked at a time: a bomb of zstd's best ratio, 1:32000, then gives 64 MB and no more
MAX_WINDOW = 1 << 28  # bytes of zstd's window, as `zstd --long=28` writes
MANY_KEYS = 50
BATCH_ROWS = 256  # rows of Parquet decoded at a time, at most
BATCH_BYTES = 64 << 20  # of them, by the row group's own word
# After '{' or ',' a string that holds a backslash: a key, perhaps, that is spelled with an escape.
ESCAPED_KEY = re.compile(rb'[{,]\s*"[^"\\]*\\')
MAX_RECORD_BYTES = 256 << 20
SUFFIXES = (".jsonl", ".json", ".ndjson", ".parquet", ".txt", ".md")
TEXT_SUFFIXES = (".txt", ".md")  # one document a file
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
    """What could not be read: `size` bytes of the file; `offset` is where reading ended.

    It counts in the unpacked stream; in Parquet, in the file itself.
    """

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
        if name.lower().endswith(packed):
            name = name[: -len(packed)]
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
        yield from _read_parquet(stream, size, limit)
    elif suffix == ".parquet":
        yield BadTail(0, size, "corrupt", "not a Parquet file: it does not begin with 'PAR1'")
    elif suffix in TEXT_SUFFIXES:
        yield from _read_text(_unpack(stream, head, size), key, limit)
    else:
        yield from _read_lines(_unpack(stream, head, size), size, limit)


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
        unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        yield from _decode(stream, size, unpacker.decompressobj, zstandard.ZstdError)
    else:
        position = 0
        while chunk := stream.read(CHUNK):
            position += len(chunk)
            yield _Piece(chunk, position)


def _decode(stream: BinaryIO, size: int, new: Any, error_type: type[Exception]) -> Iterator[_Piece | BadTail]:
    decoder, begun, position, last = new(), False, 0, b"\n"
    while chunk := stream.read(PACKED_CHUNK):
        position += len(chunk)
        while chunk:
            if not begun:  # padding after a member, as tar, tape and text editors leave it
                chunk = chunk.lstrip(b"\0\r\n")
                if not chunk:
                    break
            try:
                data = decoder.decompress(chunk)
            except error_type as error:
                if not begun and last != b"\n":
                    yield _Piece(b"\n", position - len(chunk))  # a whole member came before: its last row is whole
                yield BadTail(-1, size - position + len(chunk), "corrupt", str(error))
                return
            begun = True
            chunk = decoder.unused_data if decoder.eof else b""
            if data:
                last = data[-1:]
                yield _Piece(data, position - len(chunk))
            if decoder.eof:
                decoder, begun = new(), False
    if begun:
        yield BadTail(-1, 0, "truncated", "the compressed stream ends before its end mark")


def _read_lines(pieces: Iterator[_Piece | BadTail], size: int, limit: int) -> Iterator[Item]:
    """Rows of a stream of `size` bytes as stored; `whole` is how much of it had been read at the last whole row."""
    index, offset, rest, whole, skipped = 0, 0, bytearray(), 0, 0
    for piece in pieces:
        if isinstance(piece, BadTail):
            # What stands after the last line break is half a row: it belongs to the unreadable remainder.
            yield BadTail(offset, max(size - whole, 1), piece.reason, piece.detail)
            return
        rest += piece.data
        if b"\n" in piece.data:
            *lines, rest = rest.split(b"\n")
            whole = piece.position
        else:
            lines = []
        for line in lines:
            for item in _line(bytes(line), index, offset, skipped, limit):
                index += 1
                yield item
            offset += skipped + len(line) + 1
            skipped = 0
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
        return BadRow(index, offset, size, _json_fault(str(error)), str(error))
    if not isinstance(record, dict):
        return BadRow(index, offset, size, "not_an_object", f"found {type(record).__name__}")
    if _may_repeat_a_key(line, record):
        try:
            twice = _repeated_key(line)
        except RecursionError:
            return BadRow(index, offset, size, "unsupported_value", "values are nested too deeply")
        if twice is not None:
            return BadRow(index, offset, size, "duplicate_key", f"key {twice!r} stands more than once")
    return Row(index, offset, record)


def _json_fault(said: str) -> str:
    """The reason that stands behind orjson's words."""
    if "surrogate" in said:
        return "lone_surrogate"
    return "unsupported_value" if "depth limit" in said else "not_json"


def _may_repeat_a_key(line: bytes, record: dict[str, Any]) -> bool:
    """orjson keeps the last of two equal keys. This cheap look finds the suspects; the slow parser judges them."""
    if len(record) > MANY_KEYS or any(line.count(b'"' + key.encode() + b'"') != 1 for key in record):
        return True  # it stands there twice, or only with escapes
    # Or once plainly and once with one of these escapes: "te\u0078t" is "text".
    return (b"\\u" in line or b"\\/" in line) and ESCAPED_KEY.search(line) is not None


def _repeated_key(line: bytes) -> str | None:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in items)
        found[:] = [key for key, count in counts.items() if count > 1]  # the outermost object is closed last
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


def _read_parquet(stream: BinaryIO, size: int, limit: int) -> Iterator[Item]:
    try:
        file = open_parquet(stream)
    except (pa.ArrowException, OSError) as error:
        yield BadTail(0, size, "corrupt", f"Parquet footer: {error}")
        return
    index = 0
    for group in range(file.metadata.num_row_groups):
        described = file.metadata.row_group(group)
        count = max(described.num_rows, 1)
        fitting = max(1, min(BATCH_ROWS, BATCH_BYTES * count // max(described.total_byte_size, 1)))
        done = 0
        try:
            for batch in read_batches(file, fitting, groups=[group]):
                for item in _rows(batch, index + done, limit):
                    done += 1
                    yield item
        except (pa.ArrowException, OSError) as error:
            lost = described.num_rows - done
            columns = [described.column(number) for number in range(described.num_columns)]
            stored = sum(column.total_compressed_size for column in columns) * lost // count
            begins = min(column.dictionary_page_offset or column.data_page_offset for column in columns)
            yield BadTail(begins, max(stored, 1), "corrupt", f"row group {group}, last {lost} rows: {error}")
        index += described.num_rows  # rows keep their number even when an earlier group is damaged


_CONVERSION = (pa.ArrowException, ValueError, OverflowError, KeyError, TypeError)


def _rows(batch: pa.RecordBatch, first: int, limit: int) -> Iterator[Row | BadRow]:
    """The rows of a batch, numbered from `first`. A row too large, or with a value that Python cannot hold, is bad."""
    sizes = _text_sizes(batch)
    try:
        if max(sizes, default=0) <= limit:
            for number, record in enumerate(batch.to_pylist()):
                yield Row(first + number, -1, record)
            return
    except _CONVERSION:  # raised before the first row was given out
        pass
    for number, size in enumerate(sizes):
        single = batch.slice(number, 1)
        try:
            if size > limit:
                yield BadRow(first + number, -1, size, "record_too_large", f"{size} bytes; the limit is {limit}")
            else:
                yield Row(first + number, -1, single.to_pylist()[0])
        except _CONVERSION as error:
            reason = "invalid_utf8" if isinstance(error, UnicodeDecodeError) else "unsupported_value"
            yield BadRow(first + number, -1, 0, reason, f"{_bad_column(single)}: {error}"[:200])


def _text_sizes(batch: pa.RecordBatch) -> list[int]:
    """Bytes of strings in each row."""
    total = pa.array([0] * batch.num_rows, pa.int64())
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
            total = pc.add(total, pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), 0))
    return total.to_pylist()


def _bad_column(single: pa.RecordBatch) -> str:
    for name, column in zip(single.schema.names, single.columns, strict=True):
        try:
            column.to_pylist()
        except _CONVERSION:
            return f"column {name!r}"
    return "row"


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
