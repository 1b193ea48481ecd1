"""Loss on held-out data, in nats a token, with an interval; and a unigram model's, which any model must beat."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from tasks.training.data import Batch, Source, collate
from tasks.training.losses import IGNORED, token_losses

RESAMPLES = 1000
MOST_SEQUENCES = 96  # of 512 tokens: about 50,000 tokens, well under a minute on one core
BATCH = 4


@dataclass(frozen=True)
class Losses:
    """Sums over units (documents or conversations): of losses and of supervised tokens, (units,) each."""

    sums: np.ndarray
    tokens: np.ndarray

    @property
    def mean(self) -> float:
        """Nats a token."""
        return float(self.sums.sum() / self.tokens.sum())

    def interval(self, seed: int = 0) -> tuple[float, float]:
        """The middle 95% of the mean under a bootstrap over units: tokens of one document are not independent."""
        used = np.flatnonzero(self.tokens)
        draws = np.random.default_rng(seed).integers(len(used), size=(RESAMPLES, len(used)))
        means = self.sums[used][draws].sum(1) / self.tokens[used][draws].sum(1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(low), float(high)

    def where(self, chosen: np.ndarray) -> "Losses":
        """The same over some of the units: `chosen` is (units,) bool."""
        return Losses(self.sums[chosen], self.tokens[chosen])


def heldout_losses(
    source: Source, pad: int, loss_of: Callable[[Batch], torch.Tensor], most: int = MOST_SEQUENCES
) -> Losses:
    """Losses under `loss_of(batch)` → (batch, length) nats, by unit.

    At most `most` sequences, spread evenly over the split, so that every source has its part.
    """
    count = min(most, len(source))
    indices = [i * len(source) // count for i in range(count)]
    owners, nats = [], []
    for start in range(0, count, BATCH):
        chosen = indices[start : start + BATCH]
        batch = collate([source[i] for i in chosen], source.length, pad)
        losses = loss_of(batch).double().numpy()
        for row, index in enumerate(chosen):
            units = source.units(index)
            supervised = batch.labels[row, : len(units) - 1].numpy() != IGNORED
            owners.append(units[1:][supervised])
            nats.append(losses[row, : len(units) - 1][supervised])
    unit = np.concatenate(owners)
    return Losses(np.bincount(unit, weights=np.concatenate(nats)), np.bincount(unit))


def model_loss(model: PreTrainedModel) -> Callable[[Batch], torch.Tensor]:
    """Token losses of a causal language model."""
    model.eval()

    @torch.inference_mode()
    def losses(batch: Batch) -> torch.Tensor:
        logits = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        return token_losses(logits, batch.labels)

    return losses


def model_misses(model: PreTrainedModel) -> Callable[[Batch], torch.Tensor]:
    """1 where the model's first guess is not the token that follows, else 0: the mean is 1 - accuracy."""
    model.eval()

    @torch.inference_mode()
    def misses(batch: Batch) -> torch.Tensor:
        logits = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        return ((logits.argmax(-1) != batch.labels) & (batch.labels != IGNORED)).float()

    return misses


def unigram_loss(counts: np.ndarray) -> Callable[[Batch], torch.Tensor]:
    """Token losses of the model that knows only how often each token occurs in the training split, plus one."""
    smoothed = counts + 1.0
    nats = torch.from_numpy(-np.log(smoothed / smoothed.sum()))

    def losses(batch: Batch) -> torch.Tensor:
        known = batch.labels != IGNORED
        return torch.where(known, nats[batch.labels.clamp(min=0)], 0.0)

    return losses
