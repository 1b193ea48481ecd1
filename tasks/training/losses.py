"""Losses. Every one is a sum over supervised tokens, divided by their number over all ranks and micro-batches.

The mean over micro-batches of unequal length is not the mean over tokens; so the divisor comes from outside.
"""

from collections.abc import Callable

import torch
from torch.nn import functional

# Logits (supervised, vocab) and labels (supervised,) → one loss each, (supervised,).
Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
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
    return share_of_step(token_losses(logits, labels), supervised)


def share_of_step(losses: torch.Tensor, supervised: int) -> torch.Tensor:
    """What a micro-batch adds to the loss of a step with `supervised` such losses over all ranks."""
    return losses.sum() / max(1, supervised)


def preference_losses(
    chosen: torch.Tensor, rejected: torch.Tensor, margins: torch.Tensor, ties: torch.Tensor
) -> torch.Tensor:
    """−log σ(Δ − margin) of each pair (Bradley & Terry 1952; margins as in Touvron et al. 2023), all of shape (pairs,).

    Δ is the better answer's score less the worse one's, so a shift of all scores changes nothing. A tie pulls both
    together: the mean of both outcomes' losses.
    """
    difference = (chosen - rejected).float()
    decided = -functional.logsigmoid(difference - margins)
    undecided = -0.5 * (functional.logsigmoid(difference) + functional.logsigmoid(-difference))
    return torch.where(ties, undecided, decided)
