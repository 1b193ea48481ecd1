"""Losses. Every one is a sum over supervised tokens, divided by their number over all ranks and micro-batches.

The mean over micro-batches of unequal length is not the mean over tokens; so the divisor comes from outside.
"""

import torch
from torch.nn import functional

IGNORED = -100  # label of a token that is not supervised


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood in nats: logits (…, vocab), labels (…) → (…), mostly (batch, length) or (supervised,).

    A label is what should follow its token (already shifted); 0 where it is IGNORED.
    """
    flat = functional.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view_as(labels)


def causal_loss(logits: torch.Tensor, labels: torch.Tensor, supervised: int) -> torch.Tensor:
    """Sum of the token losses over `supervised`, the number of supervised tokens in the whole step.

    A micro-batch with nothing to supervise gives 0 with zero gradients, never NaN.
    """
    return token_losses(logits, labels).sum() / max(1, supervised)
