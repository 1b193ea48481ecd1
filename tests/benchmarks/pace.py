"""One side of a race: it runs a round of steps when told to, so that two sides take turns on an otherwise idle machine.

A round ends with a line `ROUND {"seconds": …, "supervised": …, "tokens": …, "slots": …}`, printed after its last step;
the next begins with a line of input. The first is a warm-up that the driver does not count.
"""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

MARK = "ROUND "


@dataclass
class Work:
    """What one side does. The same on all sides: model, conversations and their order, portions, threads."""

    model: str
    conversations: str  # JSON: [[ids, mask], …], as a trainer takes them from its tokenizer
    length: int = 512
    packed: bool = False
    everything: bool = False  # every token is learnt, as in pretraining, not the answers alone
    micro_batch: int = 4
    accumulation: int = 2
    round: int = 4  # steps
    rounds: int = 4
    threads: int = 2
    ranks: int = 1
    checkpoint_every: int = 10**6
    detectors: bool = True
    rates: list[float] = field(default_factory=list)  # learning rate of each step; none: a constant one
    losses: str = ""  # a file for each step's loss; none: none is kept

    @classmethod
    def read(cls, path: str) -> "Work":
        return cls(**orjson.loads(Path(path).read_bytes()))

    @property
    def steps(self) -> int:
        return len(self.rates) or self.round * self.rounds

    def rate(self, step: int) -> float:
        return self.rates[min(step, len(self.rates) - 1)] if self.rates else 1e-3

    def items(self) -> list[tuple[list[int], list[bool]]]:
        """Conversations as ids and the assistant's mask; what is masked out of the loss where not `everything`."""
        pairs = orjson.loads(Path(self.conversations).read_bytes())
        return [(ids, [True] * len(ids) if self.everything else mask) for ids, mask in pairs]


class Pace:
    """Counts what each step did, and waits after every round but the last."""

    def __init__(self, work: Work) -> None:
        self.work, self.steps = work, 0
        self._begin()

    def _begin(self) -> None:
        self.sums = {"supervised": 0, "tokens": 0, "slots": 0}
        self.start = time.monotonic()

    def step(self, **counts: Any) -> None:
        """A step was done on so many supervised tokens, tokens, and slots of its batches."""
        self.steps += 1
        for name, count in counts.items():
            self.sums[name] += int(count)
        if self.work.losses or self.steps % self.work.round:
            return
        line = {"seconds": time.monotonic() - self.start, **self.sums}
        print("\n" + MARK + orjson.dumps(line).decode(), flush=True)
        if self.steps < self.work.steps:
            if not sys.stdin.readline():
                raise SystemExit("the driver of the benchmark is gone")
            self._begin()
