"""Several documents in one sequence: positions that restart, and bins that are filled well."""

from bisect import bisect_left, insort

import numpy as np


def positions_of(ids: np.ndarray, end_of_text: int) -> np.ndarray:
    """Position ids that restart after each end-of-text token, and at 0: (length,) int64.

    Attention that is derived from them (transformers does so when it is given no mask) stays inside a document.
    """
    starts = np.zeros(len(ids), bool)
    starts[:1] = True
    starts[1:] = ids[:-1] == end_of_text
    return positions_from(starts)


def positions_from(starts: np.ndarray) -> np.ndarray:
    """Position ids that restart wherever `starts` is true."""
    index = np.arange(len(starts), dtype=np.int64)
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Bins of items by best-fit decreasing: each item goes where the least room is left (Ding et al. 2024).

    Returns lists of indices into `lengths`; every index once. Ties keep the items' order. Raises ValueError for an
    item longer than the capacity.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (what is left, bin), sorted
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        if length > capacity:
            raise ValueError(f"item {item} has {length} tokens, more than the capacity of {capacity}")
        place = bisect_left(room, (length, -1))
        if place == len(room):
            bins.append([item])
            left, target = capacity - length, len(bins) - 1
        else:
            left, target = room.pop(place)
            bins[target].append(item)
            left -= length
        insort(room, (left, target))
    return bins
