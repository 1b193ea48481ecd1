"""Prioritised replay: prompts and stale rollouts drawn by how much there is still to learn from them, by domain.

PPO is on-policy, so a stale rollout is used with truncated importance weights, and only while it is young enough.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BLOCK = 512  # tokens over which a temporal-difference error is averaged


def segmented_error(errors: np.ndarray, block: int = BLOCK) -> float:
    """The largest mean |δ| of a rollout's blocks of `block` tokens: (length,) → one number ≥ 0.

    A mean over a long answer would hide the one passage that the critic was wrong about.
    """
    if len(errors) == 0:
        return 0.0
    blocks = [np.abs(errors[start : start + block]).mean() for start in range(0, len(errors), block)]
    return float(max(blocks))


def nearness(embedding: np.ndarray, centroid: np.ndarray) -> float:
    """Cosine of an answer's embedding with its domain's centroid, in [0, 1]; 0 for what points away."""
    norms = float(np.linalg.norm(embedding) * np.linalg.norm(centroid))
    return max(0.0, float(embedding @ centroid) / norms) if norms else 0.0


def importance_weights(new: np.ndarray, old: np.ndarray, bound: float) -> np.ndarray:
    """min(π_new / π_old, bound) per token, from log-probs (Espeholt et al. 2018, truncated): (n,) → (n,)."""
    return np.exp(np.minimum(new - old, np.log(bound)))


@dataclass
class Entry:
    """Something to draw again: its `priority` (unscaled, ≥ 0) and the step when it was made."""

    key: str
    priority: float
    step: int
    payload: Any = None


@dataclass
class ReplayBuffer:
    """One buffer a domain. A draw is proportional to priority^α (Schaul et al. 2016); nothing foreign is ever drawn.

    `capacity` entries a domain, the oldest going first; entries older than `staleness` steps are dropped before a draw.
    """

    alpha: float = 0.6
    capacity: int = 1024
    staleness: int = 8
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    def add(self, domain: str, entry: Entry) -> None:
        """Keep an entry; one with the same key is replaced. Raises ValueError for a priority that is no number ≥ 0."""
        if not (np.isfinite(entry.priority) and entry.priority >= 0):
            raise ValueError(f"replay: priority {entry.priority} of {entry.key} is not a number ≥ 0")
        kept = [item for item in self._entries.get(domain, []) if item.key != entry.key]
        self._entries[domain] = [*kept, entry][-self.capacity :]

    def forget_stale(self, step: int) -> int:
        """Drop what is too old at `step`; how many there were."""
        before = sum(map(len, self._entries.values()))
        for domain, entries in self._entries.items():
            self._entries[domain] = [entry for entry in entries if step - entry.step <= self.staleness]
        return before - sum(map(len, self._entries.values()))

    def probabilities(self, domain: str) -> np.ndarray:
        """priority^α / Σ of a domain's entries, shape (n,); all equal when every priority is 0."""
        powers = np.array([entry.priority for entry in self._entries.get(domain, [])]) ** self.alpha
        total = powers.sum()
        return powers / total if total > 0 else np.full(len(powers), 1 / max(1, len(powers)))

    def draw(self, domain: str, count: int, seed: int, step: int) -> list[Entry]:
        """`count` entries of the domain with replacement; fewer (none) when it holds nothing young enough."""
        self.forget_stale(step)
        entries = self._entries.get(domain, [])
        if not entries:
            return []
        drawn = np.random.default_rng([seed, step]).choice(len(entries), size=count, p=self.probabilities(domain))
        return [entries[place] for place in drawn]

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def state(self) -> dict[str, Any]:
        """What `restore` needs; payloads as they are."""
        return {name: [vars(entry).copy() for entry in entries] for name, entries in self._entries.items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._entries = {name: [Entry(**entry) for entry in entries] for name, entries in state.items()}
