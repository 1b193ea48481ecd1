"""The candidates' shingle sets: their text is read again, shard by shard, and handed on by component."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from tasks.corpus.document import doc_id
from tasks.corpus.manifest import Shard
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.curation.config import CurationConfig
from tasks.curation.dedup.links import labels_of
from tasks.curation.dedup.pieces import Chunk, read_piece, read_status, write_piece
from tasks.curation.dedup.plan import REF_BITS, load_run
from tasks.curation.dedup.shingles import shingles
from tasks.curation.dedup.units import UNITS
from tasks.curation.text.normalise import normalise
from tasks.errors import DataError

CANDIDATES = pa.schema(
    # Of the units of a part that are equal, one alone carries its shingles; they are null in the others.
    [("label", pa.int64()), ("ref", pa.int64()), ("shingles", pa.large_binary()), *UNITS]
)
AT_ONCE = 512  # candidates whose shingle sets are handed on together


def write_candidates(part: int, work: str, level: str, rounds: int) -> dict[str, int]:
    """Piece `<level>/candidates/<part>`: the part's units that have a link, each with its component's label."""
    run = load_run(work)
    name = f"{level}/candidates/{part:05d}"
    if (status := read_status(run.store, name)) is not None:
        return status
    facts = {"documents_read": 0, "shards_read": 0}
    positions, labels = labels_of(run, level, rounds, part)
    members = _chosen(read_piece(run.store, f"{level}/members/{part:05d}", 0), positions)
    parts, landing, shards = run.parts(level), run.landing(part, level), run.shards(part, level)

    def chunks() -> Iterator[Chunk]:
        order = np.argsort(members["shard"].to_numpy(), kind="stable")
        numbers = members["shard"].to_numpy()[order]
        seen: set[bytes] = set()
        for number in np.unique(numbers).tolist():
            mine = order[numbers == number]
            table = members.take(pa.array(mine))
            table = table.append_column("label", pa.array(labels[mine]))
            table = table.append_column("ref", pa.array((np.int64(part) << REF_BITS) + positions[mine]))
            new = []
            for identity in table["identity"].to_pylist():
                new.append(identity not in seen)
                seen.add(identity)
            facts["shards_read"] += any(new)
            facts["documents_read"] += len(set(table.filter(pa.array(new))["row"].to_pylist()))
            copies = table.filter(pa.array([not item for item in new], pa.bool_()))
            yield from _spread(copies.append_column("shingles", pa.nulls(copies.num_rows, pa.large_binary())), parts)
            fresh = table.filter(pa.array(new, pa.bool_()))
            for batch, sets in _with_shingles(fresh, shards[number], landing, run.config):
                yield from _spread(batch.append_column("shingles", pa.array(sets, pa.large_binary())), parts)

    return write_piece(run.store, name, CANDIDATES, chunks(), facts, run.budget // 8)


def _chosen(tables: Iterator[pa.Table], positions: np.ndarray) -> pa.Table:
    """Rows at ascending positions of consecutive tables."""
    first, found = 0, [UNITS.empty_table()]
    for table in tables:
        low, high = np.searchsorted(positions, [first, first + table.num_rows])
        found.append(table.take(pa.array(positions[low:high] - first)))
        first += table.num_rows
    return pa.concat_tables([table.cast(UNITS) for table in found])


def _with_shingles(
    units: pa.Table, shard: Shard, landing: str, config: CurationConfig
) -> Iterator[tuple[pa.Table, list[bytes]]]:
    """Batches of units of one shard, with the bytes of their shingle sets."""
    by_row: dict[int, list[int]] = {}
    for number, row in enumerate(units["row"].to_pylist()):
        by_row.setdefault(row, []).append(number)
    starts, ends = units["start"].to_pylist(), units["end"].to_pylist()
    expected = dict(zip(units["row"].to_pylist(), units["doc_id"].to_pylist(), strict=True))
    taken: list[int] = []
    sets: list[bytes] = []
    for row, text in texts_of(shard, landing, expected, config):
        for number in by_row[row]:
            taken.append(number)
            sets.append(shingles(text[starts[number] : ends[number]], config.dedup).tobytes())
        if len(taken) >= AT_ONCE:
            yield units.take(pa.array(taken)), sets
            taken, sets = [], []
    yield units.take(pa.array(taken, pa.int64())), sets


def texts_of(
    shard: Shard, landing: str, expected: Mapping[int, bytes], config: CurationConfig
) -> Iterator[tuple[int, str]]:
    """Rows whose doc_id is expected, with their normalised text, in the shard's order.

    They were found to be documents when their signals were computed; here they are only compared with their doc_id.
    Raises DataError when one is not there any more, or is another text.
    """
    if not expected:
        return
    found = 0
    for item in read_shard(open_store(landing), shard.key, config.max_record_bytes):
        if isinstance(item, Row) and item.index in expected:
            text = item.record.get("text")
            if not isinstance(text, str) or bytes.fromhex(doc_id(text)) != expected[item.index]:
                raise DataError(f"{shard.key}, row {item.index}: its text changed since its signals were computed")
            found += 1
            yield item.index, normalise(text)
    if found != len(expected):
        raise DataError(
            f"{landing}/{shard.key}: {len(expected) - found} rows are gone since its signals were computed; its text "
            "is needed again to verify duplicates"
        )


def _spread(table: pa.Table, parts: int) -> Iterator[Chunk]:
    """Rows by the part that decides their component."""
    table = table.select(CANDIDATES.names)
    target = job_of(table["label"].to_numpy(), parts)
    for number in np.unique(target).tolist():
        yield number, table.filter(pa.array(target == number))


def job_of(labels: np.ndarray, parts: int) -> np.ndarray:
    mixed = labels.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(parts)).astype(np.int64)
