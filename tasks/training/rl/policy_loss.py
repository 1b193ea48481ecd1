"""Losses of PPO and GRPO. Like every loss here a sum over tokens over their number in the whole step.

All tensors are per token, shape (batch, length) or (tokens,); `mask` says which tokens the policy chose.
"""

import torch
from torch.nn import functional


def token_log_probs(logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """log p of each label under logits (…, vocab) at the temperature that the tokens were drawn at: (…).

    Without the same temperature the ratio of new to old policy is not 1 at the first step.
    """
    flat = functional.cross_entropy(
        logits.flatten(0, -2).float() / temperature, labels.flatten().clamp_min(0), reduction="none"
    )
    return -flat.view(labels.shape)


def entropy(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Entropy in nats of the distribution that tokens are drawn from: logits (…, vocab) → (…)."""
    log_probs = functional.log_softmax(logits.float() / temperature, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def clipped_policy_loss(
    new: torch.Tensor,
    old: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    tokens: float,
    *,
    clip: float = 0.2,
    weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """−min(r·A, clip(r, 1 ± ε)·A) summed over masked tokens, over `tokens` (Schulman et al. 2017, eq. 7).

    `new` and `old` are log-probs, `weights` importance weights of rollouts that an older policy made. Returns the loss
    and sums over tokens of `ratio` and `clipped` (how many ratios were cut), for the report.
    """
    ratio = torch.where(mask, new - old, 0.0).exp()
    cut = ratio.clamp(1 - clip, 1 + clip)
    objective = torch.minimum(ratio * advantages, cut * advantages)
    if weights is not None:
        objective = objective * weights
    held_back = (cut * advantages < ratio * advantages) & mask
    sums = {"ratio": float(ratio[mask].detach().sum()), "clipped": float(held_back.sum())}
    return -(objective * mask).sum() / max(1.0, tokens), sums


def clipped_value_loss(
    new: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, tokens: float, *, clip: float = 0.2
) -> torch.Tensor:
    """½·max((v − R)², (v_old + clip(v − v_old, ±ε) − R)²) summed over masked tokens, over `tokens`.

    As in the code of Schulman et al. 2017: a critic may not leap away from what the advantages were computed with.
    """
    near = old + (new - old).clamp(-clip, clip)
    worse = torch.maximum((new - returns).square(), (near - returns).square())
    return 0.5 * torch.where(mask, worse, 0.0).sum() / max(1.0, tokens)
