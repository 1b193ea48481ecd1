"""The training loop that every stage with one loss over tokens shares."""

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.training.checkpoint import resume, save_checkpoint
from tasks.training.context import Context
from tasks.training.data import Loader
from tasks.training.engine import Engine
from tasks.training.schedule import learning_rate

Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # logits, labels, supervised tokens of the step


def train(context: Context, engine: Engine, loader: Loader, loss_of: Loss) -> None:
    """Train from the last complete checkpoint, or from the start, to the last step.

    Raises AthanorError when the loss is no longer a number.
    """
    config, steps = engine.config, loader.steps
    slots = config.sequences_per_step * loader.source.length
    for step in range(resume(context, engine), steps):
        start = time.monotonic()
        context.check()
        _seed(config.seed, step, context.rank)
        batches = loader.step(step)
        supervised, tokens = engine.sum(sum(b.supervised for b in batches), sum(b.tokens for b in batches))
        share = 0.0
        for batch in batches:
            value = loss_of(engine.forward(batch), batch.labels, int(supervised))
            engine.backward(value)
            rate = learning_rate(step, steps, config.optimizer)
            norm = engine.step(rate)
            share += value.item()
        (loss,) = engine.sum(share)
        if not math.isfinite(loss):
            raise AthanorError(f"the loss of step {step + 1} is {loss}; lower the learning rate, or look at its data")
        seconds = time.monotonic() - start
        context.report(
            step=step + 1,
            steps=steps,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            tokens=int(tokens),
            supervised=int(supervised),
            tokens_per_second=round(tokens / seconds, 1),
            slots=slots,
            padding_share=round(1 - tokens / slots, 4),
            seconds=round(seconds, 3),
        )
        if (step + 1) % config.checkpoint_every == 0 or step + 1 == steps:
            save_checkpoint(context, engine, step + 1)


def _seed(*parts: int) -> None:
    """Seed by step and rank, so that a resumed step draws the same numbers."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
