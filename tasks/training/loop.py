"""The training loop that every stage with one loss over tokens shares."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.training.checkpoint import resume, save_checkpoint
from tasks.training.context import Context
from tasks.training.data import Loader
from tasks.training.engine import Engine
from tasks.training.schedule import learning_rate

Loss = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # logits, labels, supervised tokens of the step


class Companion:
    """Something that goes along with a run: it may look before every step and measure before every checkpoint.

    Its state is saved with the checkpoint and restored from it. What it does must be the same on every rank.
    """

    name: str
    done = False  # whether the run is to end here

    def before_step(self, engine: Engine, step: int, steps: int) -> None:
        """Called before step `step` (from 0) of `steps`."""

    def before_checkpoint(self, engine: Engine, step: int) -> dict[str, Any]:
        """Called when `step` steps are done and a checkpoint follows. Returns figures for the step's report."""
        return {}

    def keeps(self) -> set[int]:
        """Steps whose checkpoints must stay."""
        return set()

    def state(self) -> Any:
        """What `restore` needs, as JSON."""

    def restore(self, state: Any) -> None: ...


def train(
    context: Context, engine: Engine, loader: Loader, loss_of: Loss, companions: Sequence[Companion] = ()
) -> None:
    """Train from the last complete checkpoint, or from the start, to the last step, or until a companion is done.

    Raises AthanorError when the loss is no longer a number.
    """
    config, steps = engine.config, loader.steps
    slots = config.sequences_per_step * loader.source.length
    first, states = resume(context, engine)
    for companion in companions:
        if companion.name in states:
            companion.restore(states[companion.name])
    for step in range(first, steps):
        if any(companion.done for companion in companions):
            break
        start = time.monotonic()
        context.check()
        for companion in companions:
            companion.before_step(engine, step, steps)
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
        saving = (step + 1) % config.checkpoint_every == 0 or step + 1 == steps
        figures: dict[str, Any] = {}
        for companion in companions if saving else ():
            figures |= companion.before_checkpoint(engine, step + 1)
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
            **figures,
        )
        if saving:
            states = {companion.name: companion.state() for companion in companions}
            keeps = {kept for companion in companions for kept in companion.keeps()}
            save_checkpoint(context, engine, step + 1, states, keeps)


def _seed(*parts: int) -> None:
    """Seed by step and rank, so that a resumed step draws the same numbers."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
