"""Sentences that repeat: counted in ranges of their hashes, the same whatever a worker's memory."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.storage import open_store
from tasks.curation.dedup import passage_files
from tasks.curation.dedup.pieces import hash_ranges, write_piece
from tests.oracles.repeats import repeats

LATEST = 20
HASHES = [0, 1, 7, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]


@st.composite
def occurrences(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sentences in documents of several days and parts, and what an index says of the days before."""
    rows = []
    for number in range(draw(st.integers(0, 8))):  # documents
        document = {
            "day": draw(st.integers(10, LATEST)),
            "characters": draw(st.integers(1, 3)),
            "doc_id": bytes([draw(st.integers(0, 255)), number]) + bytes(14),
            "part": draw(st.integers(0, 2)),
            "shard": draw(st.integers(0, 1)),
            "row": number,
            "documents": 1,
        }
        for start in range(draw(st.integers(0, 4))):
            rows.append({**document, "hash": draw(st.sampled_from(HASHES)), "start": start, "end": start + 1})
    for number, (value, day) in enumerate(draw(st.sets(st.tuples(st.sampled_from(HASHES), st.integers(1, 9))))):
        rows.append({
            "hash": value, "day": day, "characters": 2, "doc_id": bytes([255, number]) + bytes(14), "part": -1,
            "shard": -1, "row": -1, "start": -1, "end": -1, "documents": draw(st.integers(1, 4)),
        })  # fmt: skip
    return draw(st.permutations(rows))


@settings(deadline=None)
@given(rows=occurrences(), least=st.integers(2, 4), room=st.integers(1, 40))
def test_the_arrays_equal_plain_python(
    tmp_path_factory: Any, rows: list[dict[str, Any]], least: int, room: int
) -> None:
    store = open_store(str(tmp_path_factory.mktemp("repeats")))
    table = pa.Table.from_pylist(rows, schema=passage_files.FOUND)
    half = len(rows) // 2
    for number, some in enumerate((table.slice(0, half), table.slice(half))):
        write_piece(store, f"found/{number}", passage_files.FOUND, [(0, some)], {}, 1 << 20)
    names = ["found/0", "found/1"]
    cut: dict[tuple[int, ...], str] = {}
    for read in hash_ranges(store, names, 0, room):
        for part, found in passage_files._repeats(passage_files._frequent(names, read, least), least):
            cut |= {(part, row["shard"], row["row"], row["start"]): row["twin_id"] for row in found.to_pylist()}
    assert cut == repeats(rows, least)


def test_ranges_hold_every_row_once_and_keep_equal_hashes_together(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    hashes = np.random.default_rng(0).integers(0, 2**64, 5_000, dtype=np.uint64)
    hashes = np.concatenate([hashes, hashes[:1_000], np.array([0, 2**64 - 1], np.uint64)])
    schema = pa.schema([("hash", pa.uint64())])
    write_piece(store, "piece", schema, [(7, pa.table([hashes], schema=schema))], {}, 1 << 20)
    read: list[np.ndarray] = []
    for rows in hash_ranges(store, ["piece"], 7, 500):
        read.append(np.concatenate([table["hash"].to_numpy() for table in rows("piece")]))
    assert len(read) == 13 and max(map(len, read)) < 1.3 * 500
    assert sorted(np.concatenate(read).tolist()) == sorted(hashes.tolist())
    for earlier, later in pairwise(read):
        assert earlier.max() < later.min()

