"""Pretraining data mixed by source, kind, language and tier: shares of tokens as the recipe says, in a fixed order.

Each component of the mixture is a stream of its own documents, cut into sequences. A pattern of PERIOD places, in which
every component has its share and is spread evenly, repeats for ever; so the sequence at any position follows from the
recipe alone, and a resumed run needs no state.
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import ConfigError, DataError
from tasks.tokens.packing import positions_of
from tasks.tokens.shards import TokenShards
from tasks.training.data import Sequence, Shuffled
from tasks.training.recipe import MixturePart

PERIOD = 1000  # places of the pattern: shares are exact to a tenth of a percent


class _Stream:
    """The documents of one component, one after another: sequence j is the j-th slice of `length` tokens."""

    def __init__(self, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, length: int) -> None:
        self.rows, self.starts, self.length = rows, starts, length
        self.ends = np.cumsum(sizes)
        self.tokens = int(self.ends[-1])
        self.sequences = -(-self.tokens // length)

    def pieces(self, j: int) -> list[tuple[int, int, int]]:
        """(row, first, end) of sequence j: which document, and which tokens of the split's stream."""
        place, end = j * self.length, min((j + 1) * self.length, self.tokens)
        found = []
        while place < end:
            at = int(np.searchsorted(self.ends, place, side="right"))
            begin = int(self.ends[at - 1]) if at else 0
            stop = min(end, int(self.ends[at]))
            first = int(self.starts[at]) + place - begin
            found.append((int(self.rows[at]), first, first + stop - place))
            place = stop
        return found


class MixedDocuments:
    """Sequences of token shards, each from one component of a mixture. Sequences are numbered component by component.

    Raises ConfigError for a component that no document belongs to, DataError when one document belongs to two.
    """

    def __init__(self, shards: TokenShards, mixture: tuple[MixturePart, ...]) -> None:
        self.shards, self.length, self.mixture = shards, shards.length, mixture
        self.documents = shards.documents()
        starts, sizes = (self.documents[name].to_numpy() for name in ("start", "tokens"))
        taken = np.zeros(len(starts), bool)
        self.streams = []
        for part in mixture:
            chosen = _matches(self.documents, part)
            if not chosen.any():
                there = Counter(self.documents["source"].to_pylist())
                raise ConfigError(f"mixture: no document is {part.where}; sources there are: {dict(there)}")
            if (chosen & taken).any():
                raise DataError(
                    f"mixture: documents that are {part.where} belong to an earlier part too; name them once"
                )
            taken |= chosen
            rows = np.flatnonzero(chosen)
            self.streams.append(_Stream(rows, starts[rows], sizes[rows], self.length))
        self.first = np.cumsum([0, *(stream.sequences for stream in self.streams)])

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, index: int) -> Sequence:
        ids = np.concatenate([self.shards.read(first, end) for _, first, end in self._pieces(index)])
        positions = positions_of(ids, self.shards.index.end_of_text)
        return Sequence(ids, positions, positions > 0)

    def _pieces(self, index: int) -> list[tuple[int, int, int]]:
        component = int(np.searchsorted(self.first, index, side="right")) - 1
        return self.streams[component].pieces(index - int(self.first[component]))

    def units(self, index: int) -> np.ndarray:
        """Rows of `documents`."""
        return np.concatenate([np.full(end - first, row) for row, first, end in self._pieces(index)])

    def name(self, unit: int) -> tuple[str, str]:
        return self.documents["doc_id"][unit].as_py(), self.documents["source"][unit].as_py()


class MixedOrder:
    """Which sequence of `source` comes at which position: shares by the pattern, shuffled within each component."""

    def __init__(self, source: MixedDocuments, seed: int) -> None:
        self.first = source.first
        self.pattern = pattern([part.weight for part in source.mixture])
        # How many earlier places of the pattern belong to the same component.
        self.before = np.zeros(PERIOD, np.int64)
        for component in range(len(source.streams)):
            places = np.flatnonzero(self.pattern == component)
            self.before[places] = np.arange(len(places))
        self.counts = np.bincount(self.pattern, minlength=len(source.streams))
        self.orders = [Shuffled(stream.sequences, _seed(seed, number)) for number, stream in enumerate(source.streams)]

    def at(self, position: int) -> int:
        period, place = divmod(position, PERIOD)
        component = int(self.pattern[place])
        nth = period * int(self.counts[component]) + int(self.before[place])
        return int(self.first[component]) + self.orders[component].at(nth)


def pattern(weights: list[float]) -> np.ndarray:
    """(PERIOD,) components: counts by largest remainder (at least 1), places spread evenly."""
    shares = np.array(weights) / sum(weights) * PERIOD
    counts = np.maximum(1, np.floor(shares).astype(int))
    while counts.sum() < PERIOD:
        counts[np.argmax(shares - counts)] += 1
    while counts.sum() > PERIOD:
        counts[np.argmin(np.where(counts > 1, shares - counts, np.inf))] -= 1
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners[np.lexsort((owners, places))]


def _matches(documents: pa.Table, part: MixturePart) -> np.ndarray:
    chosen = np.ones(len(documents), bool)
    for name, value in part.conditions.items():
        if name not in documents.column_names:
            raise ConfigError(f"mixture: the token shards do not know a document's {name}; make them again")
        chosen &= pc.equal(documents[name], value).to_numpy(zero_copy_only=False).astype(bool)
    return chosen


def _seed(seed: int, component: int) -> int:
    return int(np.random.SeedSequence([seed, component]).generate_state(1)[0])
