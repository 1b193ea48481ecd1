"""Answers drawn from the policy as it is. The weights are gathered once a round and every rank draws for itself.

Generation on split weights would gather them anew for every token, and ranks whose answers end at different lengths
would wait for each other for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasks.training.model import load_model


@dataclass(frozen=True)
class Answer:
    """Tokens drawn (length,), the end-of-turn token included where there is one: `ended`."""

    ids: np.ndarray
    ended: bool


class Sampler:
    """A whole copy of the policy that draws at a temperature, from the full distribution: no top-k, no top-p, no
    forbidden token, so that its probabilities are those that are learnt from."""

    def __init__(self, folder: Any, temperature: float, new_tokens: int) -> None:
        self.model: Any = load_model(folder)
        self.model.eval()
        self.temperature, self.new_tokens = temperature, new_tokens
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])
        self.pad = self.model.generation_config.pad_token_id

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over gathered weights."""
        lacking = self.model.load_state_dict(state, strict=False)
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        if lacking.unexpected_keys or set(lacking.missing_keys) - tied:
            raise ValueError(f"gathered weights do not fit the sampler: {lacking}")

    @torch.inference_mode()
    def draw(self, prompts: Sequence[np.ndarray], seed: int, batch: int) -> list[Answer]:
        """An answer to each prompt, in their order. The same seed, prompts and batch give the same answers."""
        torch.manual_seed(seed)
        answers: list[Answer] = []
        for start in range(0, len(prompts), batch):
            some = prompts[start : start + batch]
            width = max(map(len, some))
            ids = torch.full((len(some), width), self.pad)
            seen = torch.zeros((len(some), width), dtype=torch.int64)
            for row, prompt in enumerate(some):
                ids[row, width - len(prompt) :], seen[row, width - len(prompt) :] = torch.from_numpy(prompt), 1
            drawn = self.model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=self.new_tokens,
                do_sample=True,
                temperature=self.temperature,
                top_k=0,
                top_p=1.0,
            )
            answers += [self._cut(row) for row in drawn[:, width:].numpy()]
        return answers

    def _cut(self, row: np.ndarray) -> Answer:
        """Up to the first end; what follows it is padding, and no choice of the policy's."""
        ends = np.flatnonzero(np.isin(row, list(self.ends)))
        return Answer(row[: ends[0] + 1], True) if len(ends) else Answer(row, False)
