"""What is known of answers before they are learnt from: one rank's share of a round, drawn anew or replayed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.training.data import Batch, collate_tight
from tasks.training.data import Sequence as Row
from tasks.training.recipe import RlhfStage
from tasks.training.rl.prompts import Prompt
from tasks.training.rl.rollout import Answer


@dataclass
class Round:
    """Answers of this rank. Tensors are (answers, longest answer), 0 where not `mask`."""

    prompts: list[Prompt]
    answers: list[Answer]
    raw: np.ndarray  # each reward as it was given, (answers, rewards)
    reward: torch.Tensor  # normalised and weighted, (answers,)
    mask: torch.Tensor
    old: torch.Tensor  # log-probs of the policy as it is when the round begins
    reference: torch.Tensor  # log-probs of the model that training began with
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    errors: torch.Tensor  # of the critic, one step ahead (TD); without a critic the advantages
    weights: torch.Tensor  # importance weights: 1 for what this policy drew
    embeddings: np.ndarray  # mean last state of the reference over an answer, (answers, hidden); (answers, 0) if unused

    def batch(self, rows: Sequence[int], pad: int) -> Batch:
        """Some answers with their prompts; what is learnt are the answers' tokens."""
        return batch([self.prompts[row] for row in rows], [self.answers[row] for row in rows], pad)


def batch(prompts: Sequence[Prompt], answers: Sequence[Answer], pad: int) -> Batch:
    """Answers behind their prompts as a batch whose labels are the answers' tokens."""
    sequences = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = np.concatenate([prompt.ids, answer.ids])
        sequences.append(Row(ids, np.arange(len(ids)), np.arange(len(ids)) >= len(prompt.ids)))
    return collate_tight(sequences, pad)


def micro_batches(config: RlhfStage, rows: Sequence[int]) -> list[list[int]]:
    """Rows in portions of `micro_batch`."""
    size = config.micro_batch
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


def mask_of(answers: Sequence[Answer]) -> torch.Tensor:
    """Where the answers have tokens: (answers, longest)."""
    width = max(len(answer.ids) for answer in answers)
    return torch.tensor([[place < len(answer.ids) for place in range(width)] for answer in answers])


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values of chosen tokens in their order, (tokens,), as (answers, longest): 0 where not `mask`."""
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)


def joined(first: Round, second: Round) -> Round:
    """Both rounds' answers as one."""
    width = max(first.mask.shape[1], second.mask.shape[1])

    def both(name: str) -> torch.Tensor:
        parts = [getattr(part, name) for part in (first, second)]
        if parts[0].ndim == 1:
            return torch.cat(parts)
        return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])

    tensors = ("reward", "mask", "old", "reference", "values", "advantages", "returns", "errors", "weights")
    return Round(
        prompts=first.prompts + second.prompts,
        answers=first.answers + second.answers,
        raw=np.concatenate([first.raw, second.raw]),
        embeddings=np.concatenate([first.embeddings, second.embeddings]),
        **{name: both(name) for name in tensors},
    )
