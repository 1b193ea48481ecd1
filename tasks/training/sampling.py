"""Several sources drawn by weight: shares of tokens, in an order that follows from the seed and the weights alone.

The next sequence always comes from the source that is furthest behind its share, so that after n sequences no share is
off by more than about one sequence: within 1% after a hundred. Weights may change on the way (a curriculum); every
change is remembered with the position at which it came into force, and that is all the state there is.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.errors import ConfigError
from tasks.tokens.packing import positions_of
from tasks.tokens.shards import TokenShards
from tasks.training.data import Loader, PackedDocuments, Sequence, Shuffled, Source
from tasks.training.recipe import TuningStage

REPLAY = "replay"


class Replay(PackedDocuments):
    """Pretraining documents in sequences of another length than their shards were cut to."""

    def __init__(self, shards: TokenShards, length: int) -> None:
        super().__init__(shards)
        self.length = length

    def __len__(self) -> int:
        return math.ceil(self.shards.entry.tokens / self.length)

    def __getitem__(self, index: int) -> Sequence:
        start = index * self.length
        ids = self.shards.read(start, min(start + self.length, self.shards.entry.tokens))
        positions = positions_of(ids, self.shards.index.end_of_text)
        return Sequence(ids, positions, positions > 0)


class Joined:
    """Sources one after another as one: `parts` by name, in their order."""

    def __init__(self, parts: Mapping[str, Source]) -> None:
        self.parts = dict(parts)
        self.names = list(parts)
        self._sources = list(parts.values())
        self.length = max(source.length for source in self._sources)
        self.first = np.cumsum([0, *(len(source) for source in self._sources)])
        self._units = np.cumsum([0, *(_last_unit(source) + 1 for source in self._sources)])

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, index: int) -> Sequence:
        part, place = self._place(index)
        return self._sources[part][place]

    def units(self, index: int) -> np.ndarray:
        """Numbered through all parts."""
        part, place = self._place(index)
        return self._sources[part].units(place) + self._units[part]

    def name(self, unit: int) -> tuple[str, str]:
        part = int(np.searchsorted(self._units, unit, side="right")) - 1
        return self._sources[part].name(unit - int(self._units[part]))

    def part_of(self, index: int) -> str:
        return self.names[self._place(index)[0]]

    def _place(self, index: int) -> tuple[int, int]:
        part = int(np.searchsorted(self.first, index, side="right")) - 1
        return part, index - int(self.first[part])


def _last_unit(source: Source) -> int:
    return int(source.units(len(source) - 1).max())


class WeightedOrder:
    """Which sequence of a joined source comes at which position; within a part, shuffled anew each time through.

    `weights` are shares of tokens by the name of the part.
    """

    def __init__(self, source: Joined, weights: Mapping[str, float], seed: int) -> None:
        self.source = source
        self.history: list[tuple[int, list[float]]] = [(0, [weights[name] for name in source.names])]
        self.orders = [Shuffled(len(part), _seed(seed, name)) for name, part in source.parts.items()]
        self._restart()

    def at(self, position: int) -> int:
        while position >= len(self._drawn):
            self._draw()
        return self._drawn[position]

    @property
    def weights(self) -> dict[str, float]:
        """Those in force, adding up to 1."""
        return dict(zip(self.source.names, self.history[-1][1], strict=True))

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Draw by other weights from the first sequence on that was not asked for yet."""
        self.history.append((len(self._drawn), [weights[name] for name in self.source.names]))

    def state(self) -> Any:
        return {"history": self.history, "drawn": len(self._drawn)}

    def restore(self, state: Any) -> None:
        self.history = [(position, list(weights)) for position, weights in state["history"]]
        self._restart()
        if state["drawn"]:
            self.at(state["drawn"] - 1)

    def _restart(self) -> None:
        self._drawn: list[int] = []
        self._counts = [0] * len(self.orders)
        self._credit = np.zeros(len(self.orders))  # tokens by which a part is behind its share
        self._change = 0

    def _draw(self) -> None:
        while self._change + 1 < len(self.history) and self.history[self._change + 1][0] <= len(self._drawn):
            self._change += 1
        weights = np.array(self.history[self._change][1])
        weights = weights / weights.sum()
        part = int(np.argmax(self._credit + weights * self.source.length))
        index = int(self.source.first[part]) + self.orders[part].at(self._counts[part])
        tokens = len(self.source[index].ids)
        self._credit += weights * tokens
        self._credit[part] -= tokens
        self._counts[part] += 1
        self._drawn.append(index)


def _seed(seed: int, name: str) -> int:
    return int(np.random.SeedSequence([seed, *name.encode()]).generate_state(1)[0])


def weights_of(parts: Mapping[str, Source], config: TuningStage) -> dict[str, float]:
    """Shares of tokens by part: the mixture's, or as the parts come, beside the share of replay."""
    own = {name: source for name, source in parts.items() if name != REPLAY}
    if config.mixture:
        shares = {name: config.mixture.shares[name] for name in own}
    else:
        tokens = {name: sum(len(source[i].ids) for i in range(len(source))) for name, source in own.items()}
        shares = {name: count / sum(tokens.values()) for name, count in tokens.items()}
    weights = {name: share * (1 - config.replay) for name, share in shares.items()}
    return weights | ({REPLAY: config.replay} if REPLAY in parts else {})


class TuningLoader(Loader):
    """Batches of a weighted order. An epoch is as much as the instruction records hold, replay beside them."""

    source: Joined
    order: WeightedOrder

    @property
    def steps(self) -> int:
        records = sum(len(source) for name, source in self.source.parts.items() if name != REPLAY)
        passes = math.ceil(self.config.epochs * records / (1 - self.order.weights.get(REPLAY, 0.0)) / self.sequences)
        return max(1, min(self.config.steps, passes))

    def shares_of_tokens(self, steps: int) -> dict[str, float]:
        """What each part really had of the tokens of the first `steps` windows."""
        tokens = dict.fromkeys(self.source.names, 0)
        for window in range(steps):
            for index in self.indices(window):
                tokens[self.source.part_of(index)] += len(self.source[index].ids)
        return {name: count / max(1, sum(tokens.values())) for name, count in tokens.items()}


def replay_source(shards: TokenShards, vocabulary: int, length: int) -> Replay:
    """Token shards of the parent as a source. Raises ConfigError when they were made with another vocabulary."""
    if shards.index.vocab_size != vocabulary:
        raise ConfigError(
            f"replay: the token shards have a vocabulary of {shards.index.vocab_size:,}, the model's tokenizer of "
            f"{vocabulary:,}; set `replay: 0`, or encode the corpus with the model's tokenizer"
        )
    return Replay(shards, length)
