"""Packing as it is usually done, to compare with: one conversation a sequence, and first fit in the order given."""


def first_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Each item goes into the first bin that has room for it."""
    bins: list[list[int]] = []
    room: list[int] = []
    for item, length in enumerate(lengths):
        target = next((i for i, left in enumerate(room) if left >= length), len(bins))
        if target == len(bins):
            bins.append([])
            room.append(capacity)
        bins[target].append(item)
        room[target] -= length
    return bins


def padding_share(lengths: list[int], bins: list[list[int]], capacity: int) -> float:
    """Share of the slots of all bins that no item fills."""
    return 1 - sum(lengths[item] for some in bins for item in some) / (len(bins) * capacity)
