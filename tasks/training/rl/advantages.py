"""Advantages: how much better an action was than expected."""

import torch


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    discount: float = 1.0,
    decay: float = 0.95,
    beyond: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016), and the returns that a critic learns.

    `rewards`, `values` and `mask`, shape (batch, length), are per token; a row's masked tokens need not be neighbours
    (a prompt, padding, or a tool's words may lie between), and what is not masked is passed over. `beyond`, shape
    (batch,), is the value after the last token of a row that was cut off; None: every row ended. Both results, shape
    (batch, length), are 0 where not masked.
    """
    batch, length = rewards.shape
    advantage = torch.zeros(batch, dtype=values.dtype)
    following = torch.zeros(batch, dtype=values.dtype) if beyond is None else beyond.to(values.dtype)
    advantages = torch.zeros_like(values)
    for place in reversed(range(length)):
        here = mask[:, place]
        delta = rewards[:, place] + discount * following - values[:, place]
        advantage = torch.where(here, delta + discount * decay * advantage, advantage)
        following = torch.where(here, values[:, place], following)
        advantages[:, place] = torch.where(here, advantage, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def group_advantages(scores: torch.Tensor, groups: torch.Tensor, *, by_deviation: bool = True) -> torch.Tensor:
    """GRPO (Shao et al. 2024): a score against the mean of all answers to its prompt, over their deviation.

    `scores` and `groups` (which prompt), shape (n,) → (n,). `by_deviation` False leaves the division out, which weighs
    easy and hard prompts alike (Liu et al. 2025). Answers that all score the same, or a single one, have advantage 0.
    """
    advantages = torch.zeros_like(scores)
    for group in torch.unique(groups):
        members = groups == group
        centred = scores[members] - scores[members].mean()
        deviation = centred.square().mean().sqrt()
        if deviation > 1e-8 * scores[members].abs().max():
            advantages[members] = centred / deviation if by_deviation else centred
    return advantages


def whitened(values: torch.Tensor, mean: float, deviation: float, mask: torch.Tensor) -> torch.Tensor:
    """(values − mean) / deviation where masked, else 0. The two are taken over the masked tokens of all ranks."""
    return torch.where(mask, (values - mean) / max(deviation, 1e-8), 0.0)
