"""Pieces of the clustering's work: files that a killed run finds again, and that a later step reads in part.

A piece is a Parquet file whose row groups each belong to one *target*, the part of the next step that reads them, so
that data is exchanged through files and no step holds more than its own part. Its status record is written last. All
pieces of a run lie in a folder named by the run's content key: the same key means the same bytes.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.parquet import open_parquet, read_batches
from tasks.corpus.storage import Store, to_json
from tasks.errors import DataError

SCHEMA_VERSION = 1
BATCH = 1 << 13  # rows read at a time
Chunk = tuple[int, pa.Table]  # target, rows


def read_status(store: Store, name: str) -> dict[str, Any] | None:
    """A piece's status; None when it is not finished, or its file is not of the size that was written."""
    if not store.exists(f"{name}.json"):
        return None
    status = orjson.loads(store.read(f"{name}.json"))
    return status if store.size(f"{name}.parquet") == status["size"] else None


def write_piece(
    store: Store, name: str, schema: pa.Schema, chunks: Iterable[Chunk], facts: dict[str, Any], buffered: int
) -> dict[str, Any]:
    """Write a piece and its status, and return the status.

    At most `buffered` bytes of chunks are gathered before they are written. `facts` become part of the status; they
    may be filled while the chunks are drawn.
    """
    schema = schema.with_metadata({"schema_version": str(SCHEMA_VERSION)})
    groups: list[int] = []
    with tempfile.TemporaryDirectory(prefix="athanor-") as folder:
        path = Path(folder) / "piece.parquet"
        with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, use_dictionary=False) as writer:
            for target, table in _gathered(chunks, buffered):
                writer.write_table(table.cast(schema), row_group_size=table.num_rows)
                groups.append(target)
        size = path.stat().st_size
        store.upload(path, f"{name}.parquet")
    status = {"schema_version": SCHEMA_VERSION, "size": size, "groups": groups, **facts}
    store.write(f"{name}.json", to_json(status))
    return status


def _gathered(chunks: Iterable[Chunk], buffered: int) -> Iterator[Chunk]:
    """Chunks joined by target. When they exceed the buffer, the largest target's are let go."""
    waiting: dict[int, list[pa.Table]] = {}
    sizes: dict[int, int] = {}
    for target, table in chunks:
        if table.num_rows:
            waiting.setdefault(target, []).append(table)
            sizes[target] = sizes.get(target, 0) + table.nbytes
        while sum(sizes.values()) > buffered:
            largest = max(sizes, key=lambda item: (sizes[item], -item))
            sizes.pop(largest)
            yield largest, pa.concat_tables(waiting.pop(largest))
    for target in sorted(waiting):
        yield target, pa.concat_tables(waiting[target])


def read_piece(
    store: Store, name: str, target: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of a piece that belong to a target, a batch at a time. Raises DataError when it is not finished."""
    wanted = [number for number, owner in enumerate(_finished(store, name)["groups"]) if owner == target]
    if wanted:
        with store.open(f"{name}.parquet") as stream:
            yield from read_groups(stream, wanted, columns)


def _finished(store: Store, name: str) -> dict[str, Any]:
    status = read_status(store, name)
    if status is None:
        raise DataError(f"{store.uri}/{name}.parquet: missing or cut short since it was written; run this step again")
    return status


def read_groups(stream: Any, groups: list[int], columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of the given row groups, a batch at a time."""
    with open_parquet(stream) as file:
        for batch in read_batches(file, BATCH, groups=groups, columns=columns):
            yield pa.Table.from_batches([batch])


def hash_ranges(
    store: Store, names: Sequence[str], target: int, room: int
) -> Iterator[Callable[..., Iterator[pa.Table]]]:
    """Ranges of hashes, ascending, in each of which all pieces together have about `room` rows for a target; given as
    what reads a piece's rows in the range: `rows(name)`, or some columns with the hash, `rows(name, ["hash", …])`.

    Equal hashes lie in one range, and what is done per hash needs memory for one range at a time. Hashes are uniform,
    so the ranges are about equal; a single hash is never split.
    """
    ranges = max(1, -(-sum(_count(store, name, target) for name in names) // max(room, 1)))
    borders = [(number << 64) // ranges for number in range(ranges + 1)]
    for low, high in pairwise(borders):

        def rows(
            name: str, columns: Sequence[str] | None = None, low: int = low, high: int = high
        ) -> Iterator[pa.Table]:
            for table in read_piece(store, name, target, columns):
                hashes = table["hash"].to_numpy()
                within = (hashes >= np.uint64(low)) & (hashes <= np.uint64(high - 1))
                yield table if ranges == 1 else table.filter(pa.array(within))

        yield rows


def _count(store: Store, name: str, target: int) -> int:
    """Number of rows of a piece that belong to a target."""
    wanted = [number for number, owner in enumerate(_finished(store, name)["groups"]) if owner == target]
    if not wanted:
        return 0
    with store.open(f"{name}.parquet") as stream, open_parquet(stream) as file:
        return sum(file.metadata.row_group(number).num_rows for number in wanted)


def read_whole(store: Store, name: str, target: int, schema: pa.Schema) -> pa.Table:
    """All rows of a piece that belong to a target."""
    return pa.concat_tables([schema.empty_table(), *read_piece(store, name, target)])
