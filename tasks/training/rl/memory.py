"""What a run remembers to learn from again: prompts with much left to learn, and answers that are not too stale.

The same on every rank, so nothing here depends on how many there are; all of it is JSON, so a checkpoint holds it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.training.recipe import Replay
from tasks.training.rl.replay import Entry, ReplayBuffer, nearness, segmented_error


class Memory:
    """Buffers of prompts and of answers by domain, and each domain's centroid."""

    def __init__(self, config: Replay, seed: int) -> None:
        self.config, self.seed = config, seed
        self.prompts = ReplayBuffer(config.alpha, config.capacity, config.staleness)
        self.answers = ReplayBuffer(config.alpha, config.capacity, config.staleness)
        self._centroids: dict[str, tuple[int, np.ndarray]] = {}  # answers seen, and the sum of their embeddings

    def remember(self, told: Sequence[dict[str, Any]], step: int) -> None:
        """Keep the answers of round `step`, all ranks' in one order: {"prompt", "domain", "errors", "embedding"} and
        whatever `recall` is to give back."""
        for answer in told:
            count, total = self._centroids.get(answer["domain"], (0, np.zeros(len(answer["embedding"]))))
            self._centroids[answer["domain"]] = (count + 1, total + np.array(answer["embedding"]))
        for place, answer in enumerate(told):
            priority = self.priority(answer["domain"], np.array(answer["errors"]), np.array(answer["embedding"]))
            payload = {key: value for key, value in answer.items() if key not in ("errors", "embedding")}
            self.answers.add(answer["domain"], Entry(f"{step}-{place}", priority, step, payload))
            self.prompts.add(answer["domain"], Entry(str(answer["prompt"]), priority, step, answer["prompt"]))

    def priority(self, domain: str, errors: np.ndarray, embedding: np.ndarray) -> float:
        """The largest mean |δ| of a block of 512 tokens, less where an answer is far from what its domain is about."""
        count, total = self._centroids[domain]
        near = nearness(embedding, total / count)
        return segmented_error(errors) * (1 - self.config.semantic + self.config.semantic * near)

    def choose_prompts(self, numbers: Sequence[int], domains: Sequence[str], step: int) -> list[int]:
        """The round's prompts with a share of them, the first ones, replaced by priority from the same domain."""
        share = round(self.config.prompts * len(numbers))
        drawn = self._draw(self.prompts, domains[:share], self.seed + 1, step)
        return [number if entry is None else entry.payload for entry, number in zip(drawn, numbers, strict=False)] + [
            *numbers[share:]
        ]

    def recall(self, domains: Sequence[str], count: int, step: int) -> list[dict[str, Any]]:
        """`count` answers of earlier rounds, of the round's `domains` in turn; none when nothing young enough is there.

        Always `count` or none, since every rank must learn from as many.
        """
        self.answers.forget_stale(step)
        known = [domain for domain in domains if len(self.answers.probabilities(domain))]
        wanted = [known[place % len(known)] for place in range(count)] if known else []
        return [entry.payload for entry in self._draw(self.answers, wanted, self.seed, step) if entry is not None]

    def _draw(self, buffer: ReplayBuffer, domains: Sequence[str], seed: int, step: int) -> list[Entry | None]:
        """An entry of each of these domains, None where it has none."""
        found: list[Entry | None] = [None] * len(domains)
        for domain in sorted(set(domains)):
            places = [place for place, name in enumerate(domains) if name == domain]
            for place, entry in zip(places, buffer.draw(domain, len(places), seed, step), strict=False):
                found[place] = entry
        return found

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        return {
            "prompts": self.prompts.state(),
            "answers": self.answers.state(),
            "centroids": {name: [count, total.tolist()] for name, (count, total) in self._centroids.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.prompts.restore(state["prompts"])
        self.answers.restore(state["answers"])
        self._centroids = {name: (count, np.array(total)) for name, (count, total) in state["centroids"].items()}
