"""From token shards and conversations to batches, in an order that any step can be asked for.

Nothing here has state: the sequences of step n follow from the seed and n alone, so a resumed run needs only to know
which step comes next.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tasks.tokens.packing import positions_of
from tasks.tokens.shards import TokenShards
from tasks.training.losses import IGNORED
from tasks.training.recipe import TrainedStage


@dataclass(frozen=True)
class Sequence:
    """One packed sequence, unpadded: (length,) ids, position ids that restart with each document, and which tokens
    are to be learnt (a document's first token never is: nothing of its own document comes before it).

    `labels`, where given, says of each token what the head is asked there, or IGNORED, instead of the next token.
    """

    ids: np.ndarray
    positions: np.ndarray
    supervised: np.ndarray
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """(batch, length) int64 tensors. `labels[:, t]` is the token that follows token t, or IGNORED (see Sequence)."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    tokens: int  # without padding
    supervised: int


class Source(Protocol):
    """Sequences by index."""

    length: int

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sequence: ...

    def units(self, index: int) -> np.ndarray:
        """Which document (or conversation) each token of a sequence belongs to: (length,) int64."""
        ...

    def name(self, unit: int) -> tuple[str, str]:
        """Identity and source of a document (or conversation)."""
        ...


class PackedDocuments:
    """Sequences of token shards; every token but a document's first is supervised."""

    def __init__(self, shards: TokenShards) -> None:
        self.shards, self.length = shards, shards.length
        self.documents = shards.documents()
        self._starts = self.documents["start"].to_numpy()

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> Sequence:
        ids = self.shards.sequence(index)
        positions = positions_of(ids, self.shards.index.end_of_text)
        return Sequence(ids, positions, positions > 0)

    def units(self, index: int) -> np.ndarray:
        """Rows of `documents`."""
        first = index * self.length
        places = np.arange(first, min(first + self.length, self.shards.entry.tokens))
        return np.searchsorted(self._starts, places, side="right") - 1

    def name(self, unit: int) -> tuple[str, str]:
        return self.documents["doc_id"][unit].as_py(), self.documents["source"][unit].as_py()


class PackedConversations:
    """Conversations packed into sequences; only what the assistant says is supervised.

    `bins` holds, for each sequence, its conversations as pairs of ids and assistant's mask; `names` their identities
    and sources, in the order of the bins.
    """

    def __init__(
        self,
        bins: list[list[tuple[np.ndarray, np.ndarray]]],
        length: int,
        names: list[tuple[str, str]] | None = None,
    ) -> None:
        self.bins, self.length, self.names = bins, length, names
        self._first = np.cumsum([0, *(len(items) for items in bins)])

    def __len__(self) -> int:
        return len(self.bins)

    def __getitem__(self, index: int) -> Sequence:
        items = self.bins[index]
        positions = np.concatenate([np.arange(len(ids)) for ids, _ in items])
        mask = np.concatenate([mask for _, mask in items])
        return Sequence(np.concatenate([ids for ids, _ in items]), positions, mask & (positions > 0))

    def units(self, index: int) -> np.ndarray:
        """Conversations, numbered in the order of the bins."""
        sizes = [len(ids) for ids, _ in self.bins[index]]
        return np.repeat(np.arange(self._first[index], self._first[index] + len(sizes)), sizes)

    def name(self, unit: int) -> tuple[str, str]:
        return self.names[unit] if self.names else (f"conversation {unit}", "")


def collate(sequences: list[Sequence], length: int, pad: int) -> Batch:
    """Pad sequences to `length` and shift labels. Padding is a document of its own, so that nothing attends to it.

    No sequence at all gives one row of padding: a rank with nothing left to do still takes part in the others' work.
    """
    shape = (max(1, len(sequences)), length)
    ids, labels = np.full(shape, pad, np.int64), np.full(shape, IGNORED, np.int64)
    positions = np.tile(np.arange(length), (shape[0], 1))
    for row, sequence in enumerate(sequences):
        size = len(sequence.ids)
        ids[row, :size], positions[row, :size] = sequence.ids, sequence.positions
        positions[row, size:] = np.arange(length - size)
        if sequence.labels is not None:
            labels[row, :size] = sequence.labels
        else:
            labels[row, : size - 1] = np.where(sequence.supervised[1:], sequence.ids[1:], IGNORED)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(labels),
        tokens=sum(len(sequence.ids) for sequence in sequences),
        supervised=int((labels != IGNORED).sum()),
    )


def collate_tight(sequences: list[Sequence], pad: int) -> Batch:
    """`collate` to the length of the longest sequence: what is padding in all of them need not be computed."""
    return collate(sequences, max((len(sequence.ids) for sequence in sequences), default=1), pad)


class Order(Protocol):
    """Which sequence comes at which position of an endless run."""

    def at(self, position: int) -> int: ...


class Shuffled:
    """Every sequence once an epoch; epoch e takes a permutation seeded by (seed, e)."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self._permutation: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def at(self, position: int) -> int:
        epoch, place = divmod(position, self.size)
        if self._permutation[0] != epoch:
            self._permutation = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.size))
        return int(self._permutation[1][place])


class Loader:
    """The micro-batches of one rank in any window of data. Window w holds the sequences of one step.

    The windows do not depend on the number of ranks (`world`), so a run goes on with the same data on another one.
    """

    def __init__(
        self,
        source: Source,
        config: TrainedStage,
        *,
        rank: int,
        pad: int,
        world: int | None = None,
        order: Order | None = None,
    ) -> None:
        self.source, self.config, self.rank, self.pad = source, config, rank, pad
        self.world = world or config.processes
        self.order = order or Shuffled(len(source), config.seed)
        self.sequences = config.sequences_per_step(source.length)

    @property
    def steps(self) -> int:
        """Steps of the whole run: what the recipe says, or fewer when its epochs end earlier."""
        passes = math.ceil(self.config.epochs * len(self.source) / self.sequences)
        return max(1, min(self.config.steps, passes))

    def indices(self, window: int) -> list[int]:
        """Sequences of a window over all ranks, in order."""
        first = window * self.sequences
        return [self.order.at(i) for i in range(first, first + self.sequences)]

    def shares(self, window: int) -> list[list[int]]:
        """Sequences of this rank's micro-batches: as many on every rank, the last of them perhaps short or empty."""
        indices, size = self.indices(window), self.config.micro_batch
        rounds = range(0, len(indices), self.world * size)
        return [indices[start + self.rank * size :][:size] for start in rounds]

    def step(self, window: int) -> list[Batch]:
        """This rank's micro-batches of a window."""
        return [self.batch(share) for share in self.shares(window)]

    def batch(self, indices: list[int]) -> Batch:
        """Sequences side by side, as long as the longest of them."""
        return collate_tight([self.source[i] for i in indices], self.pad)
