"""The decisions: every component walked in the total order, within a memory budget.

A unit is dropped if and only if an earlier *survivor* that shares a band with it is verified similar: exact Jaccard of
their shingle sets. Small components are decided many at a time; one that is too large for memory in blocks, each held
against the survivors of the blocks before it. The outcome is the same.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tasks.curation.config import DedupConfig
from tasks.curation.dedup.candidates import CANDIDATES
from tasks.curation.dedup.pieces import Chunk, read_piece, read_status, write_piece
from tasks.curation.dedup.plan import REF_BITS, Run, load_run
from tasks.curation.dedup.shingles import bands_and_rows
from tasks.curation.dedup.units import in_order, unpacked
from tasks.curation.dedup.walk_kernels import count_shingles, walk
from tasks.errors import DataError

CODE_VERSION = 2  # raise when survivors may change
COUNTERS = 1 << 22  # most entries of the table of frequencies
BYTES_A_UNIT = 700  # of memory for what is known of a candidate, besides its shingle set
DECIDED = pa.schema(
    [
        ("ref", pa.int64()),
        ("shard", pa.int32()),
        ("row", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("exact", pa.bool_()),
        ("similarity", pa.float64()),
        ("twin", pa.int64()),
        ("twin_id", pa.string()),
        ("twin_shard", pa.int32()),
        ("twin_row", pa.int64()),
    ]
)


@dataclass
class Spool:
    """Shingle sets in a scratch file: `sizes` in shingles, by number of the unit."""

    file: int
    offsets: np.ndarray
    sizes: np.ndarray

    def load(self, units: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The sets of some units one after another, and where each starts, shape (len(units) + 1,)."""
        starts = np.concatenate([[0], np.cumsum(self.sizes[list(units)])]).astype(np.int64)
        out = np.empty(starts[-1], dtype=np.uint64)
        for unit, (low, high) in zip(units, pairwise(starts), strict=True):
            data = os.pread(self.file, (high - low) * 8, int(self.offsets[unit]) * 8)
            out[low:high] = np.frombuffer(data, dtype=np.uint64)
        return out, starts


def decide(part: int, work: str, level: str) -> dict[str, Any]:
    """Piece `<level>/decided/<part>`: the units of this part's components that lose, and to whom."""
    run = load_run(work)
    name = f"{level}/decided/{part:05d}"
    if (status := read_status(run.store, name)) is not None:
        return status
    facts: dict[str, Any] = {"cut_short": 0, "clusters": {}, "units": 0}
    parts = run.parts(level)
    with tempfile.TemporaryFile(prefix="athanor-") as scratch:
        units, offsets, sizes = _only_present(*_spooled(_candidates(run, level, part), scratch, run.budget))
        order = in_order(units.append_column("number", pa.array(np.arange(units.num_rows))), "label")
        permutation = order["number"].to_numpy()
        spool = Spool(scratch.fileno(), offsets[permutation], sizes[permutation])
        return write_piece(
            run.store, name, DECIDED, _losers(order, spool, run.dedup(level), run.budget, parts, facts), facts,
            run.budget // 8,
        )


def _candidates(run: Run, level: str, part: int) -> Iterator[pa.Table]:
    """The candidates of this part's components, and whether they take part: all do where no run says otherwise."""
    for other in range(run.parts(level)):
        present = None
        if run.plan.links:
            masks = read_piece(run.store, f"{level}/present/{other:05d}", part)
            present = np.concatenate([np.empty(0, bool), *(mask["present"].to_numpy() for mask in masks)])
        first = 0
        for table in read_piece(run.linked(level), f"{level}/candidates/{other:05d}", part):
            last = first + table.num_rows
            here = np.ones(table.num_rows, bool) if present is None else present[first:last]
            yield table.append_column("present", pa.array(here))
            first = last


def _spooled(pieces: Iterator[pa.Table], file: BinaryIO, budget: int) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """The units of the pieces without their shingle sets, which go to the file; their places there and sizes."""
    schema = CANDIDATES.remove(CANDIDATES.get_field_index("shingles")).append(pa.field("present", pa.bool_()))
    units = [schema.empty_table()]
    sizes: list[np.ndarray] = []
    count = 0
    for table in pieces:
        for column in table["shingles"].chunks:
            if not len(column):
                continue
            _, borders, data = column.buffers()
            offsets = np.frombuffer(borders, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
            if offsets[-1] > offsets[0]:  # else all of them are copies of units elsewhere, and there may be no data
                file.write(memoryview(data)[offsets[0] : offsets[-1]])
            sizes.append(np.diff(offsets) // 8)
        count += table.num_rows
        if count * BYTES_A_UNIT > budget // 2:
            raise DataError(
                f"{count} candidates fall to one worker, which need about {count * BYTES_A_UNIT * 2 >> 20} MiB; raise "
                f"dedup.memory_budget (now {budget >> 20})"
            )
        units.append(table.drop_columns(["shingles"]))
    file.flush()
    found = np.concatenate([np.empty(0, np.int64), *sizes])
    return pa.concat_tables(units), np.concatenate([[0], np.cumsum(found)[:-1]]) if len(found) else found, found


def _only_present(units: pa.Table, offsets: np.ndarray, sizes: np.ndarray) -> tuple[pa.Table, np.ndarray, np.ndarray]:
    """Those that take part, each with its shingle set, which any of its copies may carry."""
    keys = list(zip(units["label"].to_pylist(), units["identity"].to_pylist(), strict=True))
    carrier = {key: number for number, key in enumerate(keys) if sizes[number]}
    present = units["present"].to_numpy()
    for number in np.flatnonzero(present & (sizes == 0)).tolist():
        offsets[number], sizes[number] = offsets[carrier[keys[number]]], sizes[carrier[keys[number]]]
    return units.filter(units["present"]).drop_columns(["present"]), offsets[present], sizes[present]


def _losers(
    units: pa.Table, spool: Spool, config: DedupConfig, budget: int, parts: int, facts: dict[str, Any]
) -> Iterator[Chunk]:
    """Chunks of DECIDED by owner part. `units` are sorted by component and total order."""
    facts["units"] = units.num_rows
    leaders, leader_of = _by_identity(units)
    twin, similarity = _decide_leaders(units, spool, leaders, config, budget, facts)
    number = np.arange(units.num_rows)
    lost = twin[leader_of] >= 0
    survivor = np.where(lost, twin[leader_of], leader_of)
    loses = (lost | (leader_of != number)) & ~units["settled"].to_numpy(zero_copy_only=False)
    facts["clusters"] = {
        str(size + 1): count for size, count in sorted(Counter(Counter(survivor[loses].tolist()).values()).items())
    }
    rows = np.flatnonzero(loses)
    columns = units.take(pa.array(rows)).select(["ref", "shard", "row", "start", "end"])
    winners = units.take(pa.array(survivor[rows]))
    table = pa.table(
        [
            *columns.columns,
            pa.array(~lost[rows]),
            pa.array(np.where(lost[rows], similarity[leader_of[rows]], 1.0)),
            winners["ref"],
            pa.array([item.hex() for item in winners["doc_id"].to_pylist()], pa.string()),
            winners["shard"],
            winners["row"],
        ],
        schema=DECIDED,
    )
    owner = table["ref"].to_numpy() >> REF_BITS
    for part in range(parts):
        yield part, table.filter(pa.array(owner == part))


def _by_identity(units: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the first unit of each identity, ascending, and for every unit its first."""
    first: dict[tuple[int, bytes], int] = {}
    leader_of = np.empty(units.num_rows, dtype=np.int64)
    for number, key in enumerate(zip(units["label"].to_pylist(), units["identity"].to_pylist(), strict=True)):
        leader_of[number] = first.setdefault(key, number)
    return np.array(sorted(first.values()), dtype=np.int64), leader_of


def _decide_leaders(
    units: pa.Table, spool: Spool, leaders: np.ndarray, config: DedupConfig, budget: int, facts: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """For every unit the survivor it loses to (−1: none), and the similarity. Only leaders are decided."""
    twin = np.full(units.num_rows, -1, dtype=np.int64)
    similarity = np.zeros(units.num_rows)
    bands = unpacked(units["bands"], bands_and_rows(config)[0])
    settled = units["settled"].to_numpy(zero_copy_only=False)
    room = budget // 128  # shingles of a load; the walk needs about 30 bytes for each
    for batch in _batches(units["label"].to_numpy(), leaders, spool.sizes, room):
        walker = _Walker(batch, spool, bands, settled, config, room)
        found, alike = walker.run()
        facts["cut_short"] += walker.cut_short
        hit = alike >= config.threshold
        twin[batch[hit]] = batch[found[hit]]
        similarity[batch] = alike
    return twin, similarity


def _batches(labels: np.ndarray, leaders: np.ndarray, sizes: np.ndarray, room: int) -> Iterator[np.ndarray]:
    """Leaders of as many whole components as fit in a load; a component that is too large comes alone."""
    batch: list[np.ndarray] = []
    filled = 0
    borders = np.flatnonzero(np.diff(labels[leaders])) + 1
    for component in np.split(leaders, borders) if len(leaders) else []:
        size = int(sizes[component].sum())
        if batch and filled + size > room:
            yield np.concatenate(batch)
            batch, filled = [], 0
        if len(component) > 1:
            batch.append(component)
            filled += size
    if batch:
        yield np.concatenate(batch)


@dataclass
class _Walker:
    """The walk over one batch of units, given by their numbers in the total order of their components."""

    units: np.ndarray
    spool: Spool
    bands: np.ndarray
    settled: np.ndarray
    config: DedupConfig
    room: int
    cut_short: int = 0

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """For each unit the position in the batch of its most similar survivor (−1: none), and the similarity."""
        count = len(self.units)
        best, similarity = np.full(count, -1, dtype=np.int64), np.zeros(count)
        total = int(self.spool.sizes[self.units].sum())
        blocks = self._blocks(np.arange(count), self.room if total <= self.room else self.room // 2)
        counts = self._frequencies(blocks, total)
        survivors = np.empty(0, dtype=np.int64)
        for block in blocks:
            for chunk in self._blocks(survivors, self.room // 2):
                self._walk(chunk, block, counts, best, similarity, probing=True)
            self._walk(block[:0], block, counts, best, similarity, probing=False)
            alive = (similarity[block] < self.config.threshold) | self.settled[self.units[block]]
            survivors = np.concatenate([survivors, block[alive]])
        return best, similarity

    def _blocks(self, positions: np.ndarray, room: int) -> list[np.ndarray]:
        """Consecutive positions, each block's shingles within the room (or one unit that is larger)."""
        ends = np.cumsum(self.spool.sizes[self.units[positions]])
        blocks, begin = [], 0
        while begin < len(positions):
            base = ends[begin - 1] if begin else 0
            end = max(int(np.searchsorted(ends, base + room, side="right")), begin + 1)
            blocks.append(positions[begin:end])
            begin = end
        return blocks

    def _frequencies(self, blocks: list[np.ndarray], total: int) -> np.ndarray:
        counts = np.zeros(min(COUNTERS, 1 << max(int(total).bit_length(), 4)), dtype=np.uint32)
        for block in blocks:
            count_shingles(self.spool.load(self.units[block])[0], counts)
        return counts

    def _walk(
        self,
        chunk: np.ndarray,
        block: np.ndarray,
        counts: np.ndarray,
        best: np.ndarray,
        similarity: np.ndarray,
        *,
        probing: bool,
    ) -> None:
        """Hold a block against a chunk of earlier survivors (`probing`), or walk it within itself."""
        here = np.concatenate([chunk, block])
        hashes, starts = self.spool.load(self.units[here])
        settled = np.concatenate([np.ones(len(chunk), dtype=bool), self.settled[self.units[block]]])
        found = np.full(len(here), -1, dtype=np.int64)
        alike = np.concatenate([np.zeros(len(chunk)), similarity[block]])
        self.cut_short += walk(
            hashes,
            starts,
            np.ascontiguousarray(self.bands[self.units[here]]),
            settled,
            np.full(len(here), probing),
            counts,
            self.config.threshold,
            self.config.max_comparisons,
            found,
            alike,
        )
        new = found[len(chunk) :] >= 0
        best[block[new]] = here[found[len(chunk) :][new]]
        similarity[block] = alike[len(chunk) :]
