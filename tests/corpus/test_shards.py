"""Shard readers: every format, and every kind of damage leaves the rest readable."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.corpus.shards import BadRow, BadTail, Item, Row, read_shard, write_shard
from tasks.corpus.storage import LocalStore
from tasks.errors import ConfigError

RECORDS = [{"text": f"第 {n} document", "id": str(n)} for n in range(50)]
LINES = b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS)


def read(folder: Path, name: str, data: bytes, **options: int) -> list[Item]:
    (folder / name).write_bytes(data)
    return list(read_shard(LocalStore(folder), name, **options))


def records(items: list[Item]) -> list[dict]:
    return [item.record for item in items if isinstance(item, Row)]


def reasons(items: list[Item]) -> list[str]:
    return [item.reason for item in items if not isinstance(item, Row)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_round_trip_and_same_bytes(tmp_path: Path, name: str) -> None:
    assert write_shard(tmp_path / name, RECORDS) == 50
    items = list(read_shard(LocalStore(tmp_path), name))
    assert records(items) == RECORDS
    assert [item.index for item in items if isinstance(item, Row)] == list(range(50))
    first = (tmp_path / name).read_bytes()
    write_shard(tmp_path / name, RECORDS)
    assert (tmp_path / name).read_bytes() == first


def test_unknown_format_to_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown shard format"):
        write_shard(tmp_path / "a.csv", RECORDS)


def test_plain_text_is_one_document(tmp_path: Path) -> None:
    found = records(read(tmp_path, "a note.txt", "\ufeff你好\nworld".encode()))
    assert found == [{"text": "你好\nworld", "id": "a note.txt"}]
    assert records(read(tmp_path, "b.txt.gz", gzip.compress(b"x"))) == [{"text": "x", "id": "b.txt.gz"}]
    assert reasons(read(tmp_path, "c.txt", b"\xff\xfe")) == ["invalid_utf8"]


def zst_frames() -> bytes:
    half = len(LINES) // 2
    packer = zstandard.ZstdCompressor()
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    return skippable + packer.compress(LINES[:half]) + skippable + packer.compress(LINES[half:])


def gzip_members() -> bytes:
    half = len(LINES) // 2
    return gzip.compress(LINES[:half]) + gzip.compress(LINES[half:]) + b"\0" * 512


@pytest.mark.parametrize("data", [zst_frames(), gzip_members()], ids=["zstd frames", "gzip members"])
def test_several_frames(tmp_path: Path, data: bytes) -> None:
    items = read(tmp_path, "a.jsonl.gz", data)
    assert records(items) == RECORDS
    assert reasons(items) == []


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress], ids=["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "wiped"])
def test_damaged_stream_keeps_what_can_be_read(tmp_path: Path, pack, damage: str) -> None:
    import random

    noise = random.Random(0)
    rows = [{"text": "".join(chr(noise.randrange(33, 1000)) for _ in range(2000)), "id": str(n)} for n in range(300)]
    data = bytearray(pack(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)))
    if damage == "cut":
        data = data[: len(data) * 2 // 3]
    else:
        middle = len(data) * 2 // 3
        data[middle : middle + 140_000] = b"\xff" * 140_000  # more than a zstd block, so a header is hit
    items = read(tmp_path, "a.jsonl.gz", bytes(data))
    good = records(items)
    assert 150 < len(good) < 300
    assert good[:150] == rows[:150]  # a decoder sees damage late: the rows just before it may be garbled
    tail = items[-1]
    assert isinstance(tail, BadTail)
    assert tail.reason == ("truncated" if damage == "cut" else "corrupt")
    assert tail.size > 0
    if damage == "cut":
        assert good == rows[: len(good)]
        assert tail.offset == len(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in good))


@pytest.mark.parametrize("padding", [b"\n", b"\0" * (128 << 10)], ids=["line break", "zeros"])
def test_padding_after_the_last_member_costs_nothing(tmp_path: Path, padding: bytes) -> None:
    items = read(tmp_path, "a.jsonl.gz", gzip.compress(LINES.rstrip()) + padding)
    assert (records(items), reasons(items)) == (RECORDS, [])


def test_rubbish_after_the_last_member_costs_no_row(tmp_path: Path) -> None:
    items = read(tmp_path, "a.jsonl.GZ", gzip.compress(LINES.rstrip()) + b"rubbish" * 100)
    assert (records(items), reasons(items)) == (RECORDS, ["corrupt"])


def test_a_bomb_is_unpacked_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    data = zstandard.ZstdCompressor(level=19).compress(b" " * (400 << 20))
    assert len(data) < 50_000
    tracemalloc.start()
    items = read(tmp_path, "a.jsonl.zst", data, max_record_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reasons(items) == ["record_too_large"]
    assert peak < 300 << 20


def test_bad_lines_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"text": "first, after a byte-order mark"}',
        b"not json",
        b"[1, 2]",
        b"",
        b'{"text": "\xff"}',
        rb'{"text": "\udbc0"}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "nested {\\"text\\": 1} is no second key", "x": {"text": 2}}',
        b'{"text": "last, without a line break"}',
    ]
    items = read(tmp_path, "a.jsonl", b"\n".join(lines))
    assert reasons(items) == ["not_json", "not_an_object", "invalid_utf8", "lone_surrogate", "duplicate_key"]
    assert len(records(items)) == 3
    assert [item.index for item in items if not isinstance(item, BadTail)] == list(range(8))
    offsets = [item.offset for item in items]
    data = b"\n".join(lines)
    assert data[offsets[1] :].startswith(b"not json")
    assert data[offsets[-1] :] == lines[-1]


def test_a_row_over_the_limit_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    big = b'{"text": "' + b"x" * 300_000 + b'"}\n'
    items = read(tmp_path, "a.jsonl", b'{"text": "a"}\n' + big + b'{"text": "b"}\n', max_record_bytes=100_000)
    assert records(items) == [{"text": "a"}, {"text": "b"}]
    bad = items[1]
    assert isinstance(bad, BadRow)
    assert (bad.reason, bad.size) == ("record_too_large", len(big) - 1)
    assert items[2].offset == 14 + len(big)  # type: ignore[union-attr]


def test_empty_and_one_row_files(tmp_path: Path) -> None:
    assert read(tmp_path, "a.jsonl", b"") == []
    assert len(read(tmp_path, "b.jsonl", b'{"text": "x"}')) == 1
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "c.parquet")
    assert list(read_shard(LocalStore(tmp_path), "c.parquet")) == []


def test_wrong_suffix_and_unreadable(tmp_path: Path) -> None:
    assert records(read(tmp_path, "packed but not named so.jsonl", gzip.compress(LINES))) == RECORDS
    assert reasons(read(tmp_path, "a.csv", b"x,y")) == ["unknown_format"]
    assert reasons(read(tmp_path, "a.parquet", b"no parquet at all")) == ["corrupt"]
    assert reasons(list(read_shard(LocalStore(tmp_path), "missing.jsonl"))) == ["unreadable_file"]


def test_parquet_oddities(tmp_path: Path) -> None:
    texts = [None] * 1500 + ["late text"]
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), tmp_path / "late.parquet", row_group_size=100)
    assert [r["text"] for r in records(list(read_shard(LocalStore(tmp_path), "late.parquet")))] == texts
    raw = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0"), pa.py_buffer(b"ok\xff\xfe")]
    )
    pq.write_table(pa.table({"text": raw}), tmp_path / "bad.parquet")
    items = list(read_shard(LocalStore(tmp_path), "bad.parquet"))
    assert records(items) == [{"text": "ok"}]
    assert reasons(items) == ["invalid_utf8"]


def test_a_row_of_parquet_over_the_limit_costs_itself_alone(tmp_path: Path) -> None:
    texts = ["small", "x" * 3000, None, "small too"]
    pq.write_table(pa.table({"text": texts, "note": ["n"] * 4, "number": [1] * 4}), tmp_path / "a.parquet")
    items = list(read_shard(LocalStore(tmp_path), "a.parquet", max_record_bytes=3000))
    assert [record["text"] for record in records(items)] == ["small", None, "small too"]
    bad = items[1]
    assert isinstance(bad, BadRow)
    assert (bad.index, bad.reason, bad.size) == (1, "record_too_large", 3001)


def test_large_rows_of_parquet_are_decoded_few_at_a_time(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"{n}" * 10_000_000 for n in range(8)]}), tmp_path / "a.parquet")
    before = pa.default_memory_pool().max_memory()
    assert len(records(list(read_shard(LocalStore(tmp_path), "a.parquet")))) == 8
    assert pa.default_memory_pool().max_memory() <= max(before, 400 << 20)


KEYS = st.text(st.sampled_from('tex"\\\n/中é😀{,: '), max_size=4)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(KEYS, min_size=1, max_size=5), noise=st.randoms(use_true_random=False))
def test_a_key_that_comes_twice_is_found_however_it_is_spelled(tmp_path: Path, keys: list[str], noise) -> None:
    pairs = ", ".join(f"{spelled(key, noise)}: {json.dumps(noise.choice(keys))}" for key in keys)
    found = reasons(read(tmp_path, "a.jsonl", f"{{{pairs}}}".encode()))
    assert found == (["duplicate_key"] if len(set(keys)) < len(keys) else [])


def spelled(key: str, noise) -> str:
    """A key as JSON, each character plain or as an escape."""
    units = key.encode("utf-16-be")
    escaped = "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))
    plain = json.dumps(key, ensure_ascii=noise.random() < 0.5)
    return noise.choice([plain, f'"{escaped}"', plain.replace("/", "\\/")])


def test_a_damaged_row_group_costs_that_group_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"{n} " * 50 for n in range(300)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\xaa" * column.total_compressed_size
    path.write_bytes(bytes(data))
    items = list(read_shard(LocalStore(tmp_path), "a.parquet"))
    assert [item.index for item in items if isinstance(item, Row)] == [*range(100), *range(200, 300)]
    assert reasons(items) == ["corrupt"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), suffix=st.sampled_from([".jsonl", ".txt", ".parquet", ".jsonl.gz"]))
def test_no_bytes_make_a_reader_raise(tmp_path: Path, data: bytes, suffix: str) -> None:
    for item in read(tmp_path, f"x{suffix}", data):
        assert isinstance(item, Row | BadRow | BadTail)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_any_text_survives_every_format(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"text": text} for text in texts]
    for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"):
        write_shard(tmp_path / f"t{suffix}", rows)
        assert records(list(read_shard(LocalStore(tmp_path), f"t{suffix}"))) == rows
