"""From band hashes to components of units that may be similar, part by part, in bounded memory.

Units that share a band hash are linked in a star to the first of them, never all to all. Components come from the
alternating large-star and small-star of Kiveris et al. 2014 ("Connected Components in MapReduce and Beyond"), each
round a piece of work per part. A component holds every pair that can be similar, so that it can be decided by itself.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tasks.curation.dedup.pieces import Chunk, hash_ranges, read_piece, read_status, write_piece
from tasks.curation.dedup.plan import REF_BITS, Run, load_run

BANDS = pa.schema([("hash", pa.uint64()), ("ref", pa.int64())])
BYTES_A_LINK = 256  # of a worker's memory for each (hash, ref) that it sorts at a time: a quarter of it, at 64 bytes
EDGES = pa.schema([("node", pa.int64()), ("neighbour", pa.int64())])


def band_chunks(hashes: np.ndarray, part: int, parts: int, settled: bool) -> Iterator[Chunk]:
    """Chunks of (band hash, ref) by the part that links them; those of this part's own links go to target `parts`.

    `hashes` has shape (units, bands); a hash tells its band, so that bands are sorted one by one. Where units of the
    part itself share a hash, the first stands for all, so that a hash has no more entries than there are parts.
    Survivors of earlier snapshots are not linked among themselves.
    """
    units = (np.int64(part) << REF_BITS) + np.arange(len(hashes), dtype=np.int64)
    links = np.empty((0, 2), np.int64)
    for band in range(hashes.shape[1]):
        order = np.argsort(hashes[:, band], kind="stable")
        values, refs = hashes[order, band], units[order]
        if not settled and len(values):
            new = np.concatenate([[True], values[1:] != values[:-1]])
            first = refs[new][np.cumsum(new) - 1]
            links = np.unique(np.concatenate([links, np.stack([refs[~new], first[~new]], axis=1)]), axis=0)
            values, refs = values[new], refs[new]
        target = values % np.uint64(parts)
        for number in range(parts):
            chosen = target == number
            yield number, pa.table([values[chosen], refs[chosen]], schema=BANDS)
    yield parts, pa.table([links[:, 0].view(np.uint64), links[:, 1]], schema=BANDS)


def link(part: int, work: str, level: str) -> dict[str, int]:
    """Piece `edges-0/<part>`: links between units that share one of this part's band hashes."""
    run = load_run(work)
    name = f"{level}/edges-0/{part:05d}"
    if (status := read_status(run.store, name)) is not None:
        return status
    parts, own = run.parts(level), len(run.plan.parts)
    names = [f"{level}/bands/{other:05d}" for other in range(parts)]
    edges = []
    for rows in hash_ranges(run.store, names, part, run.budget // BYTES_A_LINK):
        table = pa.concat_tables([BANDS.empty_table(), *(some for other in names for some in rows(other))])
        hashes, refs = table["hash"].to_numpy(), table["ref"].to_numpy()
        order = np.lexsort((refs, hashes))
        hashes, refs = hashes[order], refs[order]
        new = np.ones(len(hashes), dtype=bool)
        new[1:] = hashes[1:] != hashes[:-1]
        first = refs[new][np.cumsum(new) - 1]
        wanted = ~new & (refs != first) & (first >> REF_BITS < own)  # a group of earlier survivors alone is of no use
        edges.append(np.stack([refs[wanted], first[wanted]], axis=1))
    for inner in read_piece(run.store, f"{level}/bands/{part:05d}", parts):
        edges.append(np.stack([inner["hash"].to_numpy().view(np.int64), inner["ref"].to_numpy()], axis=1))
    found = np.unique(np.concatenate(edges), axis=0)
    return write_piece(run.store, name, EDGES, _both_ways(found, parts), {"edges": len(found)}, run.budget // 8)


def large_star(part: int, work: str, level: str, number: int) -> dict[str, int]:
    """Piece `edges-<number>/<part>`: every larger neighbour of a node linked to the node's smallest one instead."""
    run = load_run(work)
    name = f"{level}/edges-{number}/{part:05d}"
    if (status := read_status(run.store, name)) is not None:
        return status
    nodes, neighbours = _edges_of(run, level, number - 1, part)
    smallest = _smallest(nodes, neighbours, with_self=True)
    larger = neighbours > nodes
    changed = int((smallest[larger] != nodes[larger]).sum())
    found = np.unique(np.stack([neighbours[larger], smallest[larger]], axis=1), axis=0)
    chunks = _by_owner(found[:, 0], found[:, 1], run.parts(level))
    return write_piece(run.store, name, EDGES, chunks, {"changed": changed}, run.budget // 8)


def small_star(part: int, work: str, level: str, number: int) -> dict[str, int]:
    """Piece `edges-<number>/<part>`: a node and all its smaller neighbours linked to the smallest of them."""
    run = load_run(work)
    name = f"{level}/edges-{number}/{part:05d}"
    if (status := read_status(run.store, name)) is not None:
        return status
    nodes, neighbours = _edges_of(run, level, number - 1, part)
    smallest = _smallest(nodes, neighbours, with_self=False)
    changed = int((smallest != neighbours).sum())
    ends = np.concatenate([nodes, neighbours])
    pairs = np.unique(np.stack([ends, np.concatenate([smallest, smallest])], axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return write_piece(
        run.store, name, EDGES, _both_ways(pairs, run.parts(level)), {"changed": changed}, run.budget // 8
    )


def labels_of(run: Run, level: str, number: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions in the part of all units that have a link, ascending, and the label of each one's component."""
    nodes, neighbours = _edges_of(run, level, number, part)
    unique, where = np.unique(nodes, return_index=True)
    labels = _smallest(nodes, neighbours, with_self=True)[where]
    return unique & ((1 << REF_BITS) - 1), labels


def _edges_of(run: Run, level: str, number: int, part: int) -> tuple[np.ndarray, np.ndarray]:
    """All links of the part's own nodes, sorted by node."""
    pieces = [
        table
        for other in range(run.parts(level))
        for table in read_piece(run.store, f"{level}/edges-{number}/{other:05d}", part)
    ]
    table = pa.concat_tables([EDGES.empty_table(), *pieces])
    nodes, neighbours = table["node"].to_numpy(), table["neighbour"].to_numpy()
    order = np.lexsort((neighbours, nodes))
    return nodes[order], neighbours[order]


def _smallest(nodes: np.ndarray, neighbours: np.ndarray, *, with_self: bool) -> np.ndarray:
    """For each link, the smallest neighbour of its node. The links are sorted."""
    if not len(nodes):
        return nodes
    new = np.concatenate([[True], nodes[1:] != nodes[:-1]])
    smallest = neighbours[new][np.cumsum(new) - 1]
    return np.minimum(smallest, nodes) if with_self else smallest


def _both_ways(pairs: np.ndarray, parts: int) -> Iterator[Chunk]:
    nodes = np.concatenate([pairs[:, 0], pairs[:, 1]])
    neighbours = np.concatenate([pairs[:, 1], pairs[:, 0]])
    return _by_owner(nodes, neighbours, parts)


def _by_owner(nodes: np.ndarray, neighbours: np.ndarray, parts: int) -> Iterator[Chunk]:
    owner = nodes >> REF_BITS
    for number in range(parts):
        chosen = owner == number
        yield number, pa.table([nodes[chosen], neighbours[chosen]], schema=EDGES)
