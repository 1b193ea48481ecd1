"""Document-level deduplication in one process with datasketch's index: what the distributed clustering must equal.

Documents are walked in a total order; one is dropped if and only if an earlier *survivor* is verified similar to it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.curation.config import DedupConfig
from tasks.curation.dedup.shingles import as_minhash, jaccard, new_index


@dataclass(frozen=True, slots=True)
class Member:
    """A document that takes part. `shard` is the shard's id; a quality score is not there yet."""

    shard: str
    row: int
    doc_id: str
    characters: int
    source: str
    source_id: str
    checksum: str
    occurrence: int

    @property
    def order(self) -> tuple[int, str, str, str, str, int, int]:
        """The total order: longest first; ties by doc_id, source, given id, shard checksum, row, occurrence."""
        return (
            -self.characters,
            self.doc_id,
            self.source,
            self.source_id,
            self.checksum,
            self.row,
            self.occurrence,
        )


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A dropped document, the survivor it lost to, and the verified similarity (1.0 for equal texts)."""

    member: Member
    survivor: Member
    rule: str
    similarity: float


SetsOf = Callable[[Sequence[Member]], Mapping[Member, np.ndarray]]


def find_duplicates(
    members: Sequence[Member], signatures: np.ndarray, config: DedupConfig, shingle_sets: SetsOf
) -> list[Duplicate]:
    """Every document that loses, in the total order.

    `signatures` has shape (len(members), permutations). `shingle_sets` reads the candidates' text and returns their
    sorted shingle hashes; it is asked once, for those documents alone that share a band with another.
    """
    ranking = sorted(range(len(members)), key=lambda number: members[number].order)
    duplicates, unique = _exact([members[number] for number in ranking])
    rank_of = {members[number]: number for number in ranking}
    rows = np.array([rank_of[member] for member in unique], dtype=np.int64)
    ordered = signatures[rows] if len(rows) else signatures[:0]
    candidates = _share_a_band(ordered, config)
    sets = shingle_sets([unique[number] for number in candidates])
    index = new_index(config)
    for number in candidates:
        member, sketch = unique[number], as_minhash(ordered[number], config)
        survivors = [unique[other] for other in sorted(index.query(sketch))]
        best = _most_similar(sets[member], [(survivor, sets[survivor]) for survivor in survivors])
        if best and best[1] >= config.threshold:
            duplicates.append(Duplicate(member, best[0], "duplicate_near", best[1]))
        else:
            index.insert(number, sketch)
    return sorted(_to_survivors(duplicates), key=lambda duplicate: duplicate.member.order)


def _to_survivors(duplicates: list[Duplicate]) -> Iterator[Duplicate]:
    """A copy of a text that lost to a similar one lost to that one as well: no twin may itself be dropped."""
    lost = {duplicate.member: duplicate for duplicate in duplicates}
    for duplicate in duplicates:
        winner = lost.get(duplicate.survivor)
        yield replace(winner, member=duplicate.member) if winner else duplicate


def _exact(ordered: list[Member]) -> tuple[list[Duplicate], list[Member]]:
    first: dict[str, Member] = {}
    duplicates = []
    for member in ordered:
        survivor = first.setdefault(member.doc_id, member)
        if survivor is not member:
            duplicates.append(Duplicate(member, survivor, "duplicate_exact", 1.0))
    return duplicates, list(first.values())


def _share_a_band(signatures: np.ndarray, config: DedupConfig) -> list[int]:
    """Rows that agree with another row in all values of some band, ascending."""
    index = new_index(config)
    shared = np.zeros(len(signatures), dtype=bool)
    for band in range(index.b):
        values = np.ascontiguousarray(signatures[:, band * index.r : (band + 1) * index.r])
        keys = values.view(np.dtype((np.void, values.dtype.itemsize * index.r))).ravel()
        _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        shared |= counts[inverse.ravel()] > 1
    return np.flatnonzero(shared).tolist()


def _most_similar(
    own: np.ndarray, survivors: list[tuple[Member, np.ndarray]]
) -> tuple[Member, float] | None:
    """The most similar survivor; of equally similar ones the earliest."""
    best: tuple[Member, float] | None = None
    for survivor, other in survivors:
        # No set can be more similar than the ratio of the sizes.
        if best and min(len(own), len(other)) <= best[1] * max(len(own), len(other)):
            continue
        similarity = jaccard(own, other)
        if best is None or similarity > best[1]:
            best = survivor, similarity
    return best
