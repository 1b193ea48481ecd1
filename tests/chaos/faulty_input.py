"""Every fault that a landing zone can have, each a file with what must come of it."""

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.chaos.runs import english


@dataclass(frozen=True)
class Fault:
    """A file of the landing zone: how it is made, and the rows, reasons and tails that it must give."""

    name: str
    make: bytes | Callable[[Path], None]
    kept: int = 0
    dropped: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)  # reason → rows
    tail: tuple[str, int] | None = None  # reason, offset
    raw_bytes: int | None = None  # of text, where the test says it by itself


def good(number: int) -> dict[str, Any]:
    return {"text": english(10_000 + number), "id": f"good-{number}"}


def lines(*rows: Any) -> bytes:
    return b"".join(row + b"\n" if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def parquet(rows: dict[str, Any], **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(rows), sink, **options)
    return sink.getvalue()


def _bad_rows() -> bytes:
    deep = b'{"text": "x", "deep": ' + b"[" * 2000 + b"]" * 2000 + b"}"
    return lines(
        b"\xef\xbb\xbf" + json.dumps(good(0)).encode(),
        {"text": ""},
        {"text": None},
        {"id": "missing"},
        {"text": " \t\u3000\n "},
        {"text": "\ufeff"},
        {"text": "nul \0 inside"},
        good(1),
        b"this is no JSON",
        b'{"text": "cut off',
        b"[1, 2]",
        b'"a string"',
        b"17",
        b'{"text": "caf\xe9"}',
        b"\xff\xfe{\x00}\x00",
        rb'{"text": "\udbc0"}',
        rb'{"text": "\udc00 the other half"}',
        {"text": 7},
        {"text": ["a", "list"]},
        b'{"text": "first", "text": "second"}',
        rb'{"text": "first", "te\u0078t": "second"}',
        rb'{"te\u0078t": "first", "\u0074ext": "second"}',
        rb'{"text": "a", "a\/b": 1, "a/b": 2}',
        deep,
        {"text": "a" + "\u0301\u0323" * 400},
        b"",
        b"   ",
        good(2),
    )


BAD_ROWS = {
    "blank_text": 3,
    "text_not_a_string": 3,
    "missing_text": 1,
    "nul_in_text": 1,
    "not_json": 2,
    "not_an_object": 3,
    "invalid_utf8": 2,
    "lone_surrogate": 2,
    "duplicate_key": 4,
    "unsupported_value": 1,
    "combining_marks": 1,
}


def _innocent_rows() -> bytes:
    """What looks like a fault and is none."""
    return lines(
        {**good(3), "note": 'says "text": twice, "text" and "te\\u0078t"'},
        rb'{"a\/b": 1, "text": ' + json.dumps(english(10_004)).encode() + b"}",
        {**good(5), "nested": {"text": 1, "id": 2}, "列": "名"},
    )


def _cut(pack: str, rows: list[dict[str, Any]], whole: int) -> bytes:
    """Packed lines of which `whole` can be read, then part of another, then nothing."""
    before, after = lines(*rows[:whole]), lines(*rows[whole:])
    if pack == "gz":
        packer: Any = zlib.compressobj(6, wbits=31)
        head = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    else:
        packer = zstandard.ZstdCompressor().compressobj()
        head = packer.compress(before) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    rest = packer.compress(after) + packer.flush()
    return head + rest[:40]


CUT_GZ = [good(100 + n) for n in range(6)]
CUT_ZST = [good(110 + n) for n in range(6)]


def _wiped() -> bytes:
    data = bytearray(gzip.compress(lines(good(120), good(121))) + gzip.compress(lines(good(122))))
    second = len(gzip.compress(lines(good(120), good(121))))
    data[second + 20 :] = b"\xaa" * (len(data) - second - 20)
    return bytes(data)


def _frames() -> bytes:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    half = lines(good(130), good(131))
    pack = zstandard.ZstdCompressor().compress
    return skippable + pack(half[:700]) + skippable + pack(half[700:]) + skippable


def _late_column() -> bytes:
    """`note` holds nothing in the first row groups, and `text` nothing for a thousand rows."""
    count = 1000
    texts = [None] * count + [good(n)["text"] for n in range(140, 143)]
    notes = [None] * (count + 2) + ["at last"]
    return parquet({"text": pa.array(texts, pa.string()), "note": pa.array(notes, pa.string())}, row_group_size=100)


def _damaged_group(path: Path) -> None:
    texts = [english(10_150 + n) for n in range(9)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=3, use_dictionary=False, compression="zstd")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = (
        b"\xaa" * column.total_compressed_size
    )
    path.write_bytes(bytes(data))


def _binary_not_utf8() -> bytes:
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0")
    return parquet({"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ok\xff\xfe")])})


def _loop(path: Path) -> None:
    path.symlink_to(path.parent.parent)


def _dictionary() -> bytes:
    return parquet({"text": pa.array([good(160)["text"]] * 2).dictionary_encode()})


HUGE = 100_000_000  # characters of one document


def _huge(path: Path) -> None:
    path.write_bytes(lines({"text": "word " * (HUGE // 5)}))


FAULTS = [
    Fault("rows/bad.jsonl", _bad_rows(), kept=3, quarantined=BAD_ROWS),
    Fault("rows/innocent.jsonl", _innocent_rows(), kept=3),
    Fault("rows/one huge.jsonl", _huge, quarantined={"document_too_large": 1}),
    Fault("packed/cut.jsonl.gz", _cut("gz", CUT_GZ, 3), kept=3, tail=("truncated", len(lines(*CUT_GZ[:3])))),
    Fault("packed/cut.jsonl.zst", _cut("zst", CUT_ZST, 3), kept=3, tail=("truncated", len(lines(*CUT_ZST[:3])))),
    Fault("packed/wiped.jsonl.gz", _wiped(), kept=2, tail=("corrupt", len(lines(good(120), good(121))))),
    Fault("packed/frames.jsonl.zst", _frames(), kept=2),
    Fault("packed/members.jsonl.gz", gzip.compress(lines(good(132))) + gzip.compress(lines(good(133))), kept=2),
    Fault("packed/no rows.jsonl.gz", gzip.compress(b"")),
    Fault("packed/no bytes.jsonl.gz", b""),
    Fault("small/none.jsonl", b""),
    Fault("small/one.jsonl", lines(good(134)).rstrip(), kept=1),
    Fault("small/none.parquet", parquet({"text": pa.array([], pa.string())})),
    Fault("small/one.parquet", parquet({"text": [good(135)["text"]]}), kept=1),
    Fault("small/no bytes.parquet", b"", tail=("corrupt", 0)),
    Fault("parquet/no text.parquet", parquet({"body": ["a", "b"]}), quarantined={"missing_text": 2}),
    Fault("parquet/late.parquet", _late_column(), kept=3, quarantined={"text_not_a_string": 1000}),
    Fault("parquet/numbers.parquet", parquet({"text": [1, 2, 3]}), quarantined={"text_not_a_string": 3}),
    Fault("parquet/lists.parquet", parquet({"text": [["a"], None]}), quarantined={"text_not_a_string": 2}),
    Fault("parquet/dictionary.parquet", _dictionary(), kept=1, dropped=1),
    Fault("parquet/not utf8.parquet", _binary_not_utf8(), dropped=1, quarantined={"invalid_utf8": 1}),
    Fault("parquet/damaged.parquet", _damaged_group, kept=6, tail=("corrupt", -2)),  # −2: within the file
    Fault("parquet/cut.parquet", parquet({"text": [good(170)["text"]]})[:-20], tail=("corrupt", 0)),
    Fault("names/packed without saying so.jsonl", gzip.compress(lines(good(171))), kept=1),
    Fault("names/a table.jsonl", parquet({"text": [good(172)["text"]]}), kept=1),
    Fault("names/lines.parquet", lines(good(173)), tail=("corrupt", 0)),
    Fault("names/table.csv", b"text,id\nx,1\n", tail=("unknown_format", 0)),
    Fault("names/no suffix", lines(good(174)), tail=("unknown_format", 0)),
    Fault("names/中文 名#1 100%25?.jsonl", lines(good(175)), kept=1),
    Fault("names/new\nline.jsonl", lines(good(176)), kept=1),
    Fault("text/note.txt", good(177)["text"].encode(), kept=1),
    Fault("text/utf16.txt", "some words".encode("utf-16"), quarantined={"invalid_utf8": 1}),
    Fault("text/empty.txt", b"", quarantined={"blank_text": 1}),
    Fault("odd/pipe.jsonl", os.mkfifo, tail=("unreadable_file", 0)),
    Fault("odd/nowhere.jsonl", lambda path: path.symlink_to("gone"), tail=("unreadable_file", 0)),
    Fault("odd/itself.jsonl", lambda path: path.symlink_to(path), tail=("unreadable_file", 0)),
]
NO_FILES: dict[str, Callable[[Path], None]] = {"odd/loop": _loop, "_SUCCESS": Path.touch, ".hidden.jsonl": Path.touch}


def write_landing(folder: Path, faults: list[Fault]) -> None:
    for fault in faults:
        path = folder / fault.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(fault.make, bytes):
            path.write_bytes(fault.make)
        else:
            fault.make(path)
    for name, make in NO_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / name)
