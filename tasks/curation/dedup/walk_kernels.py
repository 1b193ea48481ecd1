"""The walk of the total order, compiled: each document against the earlier survivors that could be similar to it.

Comparing a document with every survivor of its bucket would be quadratic where a template fills a bucket with a million
different documents. So survivors are found by their rare shingles. Two sets whose Jaccard is at least t share, in any
fixed order of all shingles, one among the first n − ⌈t·n⌉ + 1 of each; ordered from rare to frequent, those are what
tells documents of one template apart (prefix filter, Bayardo et al. 2007). Where the shared one stands bounds how much
two sets can still share (positional filter, Xiao et al. 2008). Both filters are exact: no similar pair is missed.
"""

import numba
import numpy as np

from tasks.curation.dedup.shingle_kernels import shared_values

SIZE_STEP = 1.05  # survivors are kept apart by the size of their sets, in classes of this ratio
EPSILON = 1e-9  # filters may pass a pair too many, never one too few


@numba.njit(cache=True, nogil=True)
def count_shingles(hashes: np.ndarray, counts: np.ndarray) -> None:
    """Add to a table of frequencies, shape (power of two,), uint32. Collisions cost speed, not exactness."""
    mask = np.uint64(len(counts) - 1)
    for value in hashes:
        if counts[value & mask] < 0xFFFFF:
            counts[value & mask] += np.uint32(1)


@numba.njit(cache=True, nogil=True)
def _prefix_length(size: int, threshold: float) -> int:
    return size - int(np.ceil(threshold * size - EPSILON)) + 1


@numba.njit(cache=True, nogil=True)
def _from_rare_to_frequent(hashes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    mask = np.uint64(len(counts) - 1)
    keys = np.empty(len(hashes), dtype=np.uint64)
    for number in range(len(hashes)):
        value = hashes[number]
        keys[number] = (np.uint64(counts[value & mask]) << np.uint64(44)) | (value >> np.uint64(20))
    keys.sort()
    return keys


@numba.njit(cache=True, nogil=True)
def _slot(keys: np.ndarray, token: np.uint64, size_class: int) -> np.uint64:
    """Position of (token, size class) in an open hash table, or of the free place where it belongs (key 0)."""
    mask = np.uint64(len(keys) - 1)
    key = (token + np.uint64(size_class + 1) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    place = (key * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(32)
    while keys[place & mask] != 0 and keys[place & mask] != key:
        place += np.uint64(1)
    place &= mask
    if keys[place] == 0:
        keys[place] = key
    return place


@numba.njit(cache=True, nogil=True)
def walk(
    hashes: np.ndarray,
    starts: np.ndarray,
    bands: np.ndarray,
    settled: np.ndarray,
    probing: np.ndarray,
    counts: np.ndarray,
    threshold: float,
    most: int,
    best: np.ndarray,
    similarity: np.ndarray,
) -> int:
    """Decide documents in the order given; returns for how many of them `most` cut the search short.

    Document n has the sorted shingle set `hashes[starts[n] : starts[n + 1]]` and the band hashes `bands[n]`. A
    `settled` one is a survivor already; a `probing` one is decided, but compared with nobody that follows. `best` and
    `similarity` take the most similar survivor that shares a band (of equally similar ones the first), and may come in
    filled from an earlier part of the walk. A document is dropped when its `similarity` reaches `threshold`.
    """
    number = len(starts) - 1
    room = 0
    for n in range(number):
        room += _prefix_length(starts[n + 1] - starts[n], threshold)
    size = 16
    while size < 2 * room:
        size *= 2
    keys = np.zeros(size, dtype=np.uint64)
    heads = np.full(size, -1, dtype=np.int32)
    reach = np.zeros(size, dtype=np.float32)
    following = np.empty(room, dtype=np.int32)
    owner = np.empty(room, dtype=np.int32)
    seat = np.empty(room, dtype=np.int32)
    seen = np.full(number, -1, dtype=np.int32)
    used, short = 0, 0
    step = np.log(SIZE_STEP)
    for n in range(number):
        own = hashes[starts[n] : starts[n + 1]]
        length = len(own)
        tokens = _from_rare_to_frequent(own, counts)
        prefix = _prefix_length(length, threshold)
        if not settled[n]:
            looked = 0
            low = int(np.log(threshold * length) / step) - 1
            for i in range(prefix):
                if looked >= most:
                    break
                longest = (length - (1 + threshold) * i) / threshold + EPSILON
                if longest < 1:
                    break
                for size_class in range(max(low, 0), int(np.log(longest) / step) + 2):
                    place = _find(keys, tokens[i], size_class)
                    if place < 0 or reach[place] < threshold * length - 1e-3:  # of all there none can share enough
                        continue
                    entry = heads[place]
                    while entry >= 0 and looked < most:
                        other = owner[entry]
                        looked += 1
                        rest = starts[other + 1] - starts[other]
                        enough = rest - (1 + threshold) * seat[entry] >= threshold * length - EPSILON
                        if enough and rest <= longest and seen[other] != n:
                            seen[other] = n
                            if _shares_a_band(bands[n], bands[other]):
                                shared = shared_values(own, hashes[starts[other] : starts[other + 1]])
                                found = shared / (length + rest - shared)
                                if found > similarity[n] or (found == similarity[n] and other < best[n]):
                                    best[n], similarity[n] = other, found
                        entry = following[entry]
            short += looked >= most
            if similarity[n] >= threshold or probing[n]:
                continue
        size_class = int(np.log(length) / step)
        for j in range(prefix):
            left = length - (1 + threshold) * j
            if left < 0:
                break
            own_place = _slot(keys, tokens[j], size_class)
            reach[own_place] = max(reach[own_place], np.float32(left))
            following[used], owner[used], seat[used] = heads[own_place], n, j
            heads[own_place] = used
            used += 1
    return short


@numba.njit(cache=True, nogil=True)
def _find(keys: np.ndarray, token: np.uint64, size_class: int) -> np.int64:
    """Position of (token, size class), or −1."""
    mask = np.uint64(len(keys) - 1)
    key = (token + np.uint64(size_class + 1) * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
    place = (key * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(32)
    while keys[place & mask] != 0:
        if keys[place & mask] == key:
            return np.int64(place & mask)
        place += np.uint64(1)
    return np.int64(-1)


@numba.njit(cache=True, nogil=True)
def _shares_a_band(left: np.ndarray, right: np.ndarray) -> bool:
    for band in range(len(left)):  # noqa: SIM110 (any() over a generator is not compiled)
        if left[band] == right[band]:
            return True
    return False
