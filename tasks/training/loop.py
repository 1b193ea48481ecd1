"""The training loop that every stage with one loss over tokens shares."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.training.checkpoint import Checkpoints
from tasks.training.context import Context
from tasks.training.data import Loader
from tasks.training.engine import Engine
from tasks.training.job import EVENTS
from tasks.training.losses import IGNORED, Losses, share_of_step, token_losses
from tasks.training.schedule import learning_rate
from tasks.training.spikes import (
    EXCERPT_TOKENS,
    NAMED,
    Skip,
    Spike,
    SpikeWatch,
    UnitLosses,
    culprits,
    describe,
    merged,
    remedy_of,
    report_html,
    shown,
    unit_losses,
)
from tasks.training.symptoms import RUNBOOK, symptoms
from tasks.training.tracking import Trackers, tracked

Decode = Callable[[list[int]], str]


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
    context: Context,
    engine: Engine,
    loader: Loader,
    companions: Sequence[Companion] = (),
    decode: Decode = str,
    losses_of: Losses = token_losses,
) -> Checkpoints:
    """Train from the last whole checkpoint, or from the start, to the last step, or until a companion is done.

    A spike is rolled back; `decode` turns the culprit documents' tokens into text. `losses_of` says what is minimised.
    Returns the run's checkpoints, all written. Raises AthanorError when a spike cannot be rolled back.
    """
    with tracked(context) as trackers:
        run = _Run(context, engine, loader, companions, decode, losses_of, trackers)
        run.go()
    return run.checkpoints


@dataclass
class _Run:
    context: Context
    engine: Engine
    loader: Loader
    companions: Sequence[Companion]
    decode: Decode
    losses_of: Losses
    trackers: Trackers

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.context, self.engine, self.engine.config.keep_checkpoints)
        self.watch = SpikeWatch(self.context.job.folder, self.engine.config.rollback)
        self.remembering: list[SpikeWatch | Companion] = [self.watch, *self.companions]

    def go(self) -> None:
        """Every step that is still to take, and the checkpoints between them."""
        step, states = self.checkpoints.resume()
        self.restore(states)
        note = {"note": "; ".join(self.checkpoints.notes)} if self.checkpoints.notes else {}
        if not step:
            self.save(step)  # a spike may come before the first checkpoint that is due
        while step < self.loader.steps and not any(companion.done for companion in self.companions):
            self.context.check()
            self.checkpoints.check()
            record = self.take(step)
            overflowed = "skipped_by_scaler" in record
            spike = None if overflowed else self.watch.judge(step + 1, record["loss"], record["grad_norm"])
            if spike:
                step = self.roll_back(spike)
                continue
            step += 1
            saving = step % self.engine.config.checkpoint_every == 0 or step == self.loader.steps
            for companion in self.companions if saving else ():
                record |= companion.before_checkpoint(self.engine, step)
            self.trackers.log(self.context.report(**record, **note))
            note = {}
            if saving:
                self.save(step)
                self.look()
        self.checkpoints.wait()
        torch.distributed.barrier()

    def restore(self, states: dict[str, Any]) -> None:
        for item in self.remembering:
            if item.name in states:
                item.restore(states[item.name])

    def save(self, step: int) -> None:
        states = {item.name: item.state() for item in self.remembering}
        keeps = {kept for companion in self.companions for kept in companion.keeps()}
        self.checkpoints.save(step, states, keeps)

    def look(self) -> None:
        """Report the symptoms that the run shows by now, each once."""
        if self.context.first:
            known = {line["event"] for line in self.context.lines(EVENTS)}
            for found in symptoms(self.context.lines("progress.jsonl"), self.engine.config):
                if found.event not in known:
                    evidence = {"step": found.step, **found.evidence, "remedy": found.remedy}
                    self.context.event(found.event, **evidence, runbook=f"{RUNBOOK}#{found.event}")

    def take(self, step: int) -> dict[str, Any]:
        """Take step `step` (from 0). Returns its line of progress."""
        start, engine, steps = time.monotonic(), self.engine, self.loader.steps
        engine.communication.take()  # what checkpoints and companions did between two steps is no part of one
        for companion in self.companions:
            companion.before_step(engine, step, steps)
        _seed(engine.config.seed, step, self.context.rank)
        batches = self.loader.step(self.watch.window(step))
        loaded = time.monotonic() - start
        supervised, tokens = engine.sum(sum(b.supervised for b in batches), sum(b.tokens for b in batches))
        share = 0.0
        for batch in batches:
            value = share_of_step(self.losses_of(*engine.predict(batch)), int(supervised))
            engine.backward(value)
            share += value.item()
        rate = learning_rate(step, steps, engine.config.optimizer) * self.watch.rate_factor(step)
        update = engine.step(rate)
        waited = engine.communication.take()
        worked = time.monotonic() - start - waited
        loss, slots, waiting, working = engine.sum(share, sum(b.input_ids.numel() for b in batches), waited, worked)
        activation, busiest = engine.max(engine.activations.take()), engine.max(worked)
        seconds = time.monotonic() - start
        return {
            "step": step + 1,
            "steps": steps,
            "loss": loss,
            "grad_norm": update.grad_norm,
            "update_ratio": update.update_ratio,
            "activation_max": activation,
            "learning_rate": rate,
            "tokens": int(tokens),
            "supervised": int(supervised),
            "tokens_per_second": round(tokens / seconds, 1),
            "slots": int(slots),
            "padding_share": round(1 - tokens / slots, 4),
            "data_seconds": round(loaded, 4),
            "communication_share": round(waiting / (waiting + working), 4),  # of the ranks' time, waits included
            "imbalance": round(busiest * engine.world / working, 3),  # work of the busiest rank over the mean
            "seconds": round(seconds, 3),
            **({"skipped_by_scaler": True} if update.skipped else {}),
        }

    def roll_back(self, spike: Spike) -> int:
        """Return to a checkpoint before the spike, and pass over its data. Returns the step to go on with."""
        windows = self.watch.plan(spike)
        back_to = self.checkpoints.last(before=spike.step - len(windows))
        if back_to < 0:
            raise AthanorError(
                f"step {spike.step}: {describe(spike)}, and there is no checkpoint before it to go back to; lower the "
                "learning rate, or checkpoint_every, in the recipe"
            )
        skip = Skip(spike=spike, windows=windows, back_to=back_to)
        if self.context.first:
            with self.context.job.owned(self.context.token):
                self.watch.write(skip)
        # To a model that has learnt nothing all documents are alike, so the one that met the spike says which are odd.
        learnt_nothing = back_to == 0 and spike.value is not None
        documents = self._documents(windows) if learnt_nothing else []
        states = self.checkpoints.load(back_to)
        self.watch.reread()
        self.restore(states)
        self.context.rewind(back_to)
        self.trackers.rewind(back_to)
        documents = documents or self._documents(windows)
        page = self.context.job.folder / f"spike-{len(self.watch.skips)}-step-{spike.step}.html"
        if self.context.first:
            page.write_text(report_html(skip, documents), encoding="utf-8")
        self.context.event(
            "rolled_back",
            **spike.model_dump(),
            windows=windows,
            back_to=back_to,
            rate_factor=self.watch.rate_factor(back_to),
            documents=documents,
            report=str(page),
            remedy=remedy_of(self.engine.config),
        )
        return back_to

    def _documents(self, windows: list[int]) -> list[dict[str, Any]]:
        """The documents of some windows that the model finds hardest, the worst first."""
        found: UnitLosses = {}
        source = self.loader.source
        for indices in (share for window in windows for share in self.loader.shares(window)):
            batch = self.loader.batch(indices)
            losses = self.engine.evaluate(batch, self.losses_of).float().numpy()
            units = [source.units(index) for index in indices]
            found = merged(found, unit_losses(losses, batch.labels.numpy() != IGNORED, units))
        texts = self.engine.tell_all(json.dumps(found))  # not orjson: a loss may be no number
        everywhere = merged(*({int(unit): tuple(pair) for unit, pair in json.loads(text).items()} for text in texts))
        pieces: dict[int, list[int]] = {}  # of each document, what lies in these windows
        for index in (index for window in windows for index in self.loader.indices(window)):
            ids, owners = source[index].ids, source.units(index)
            for unit in np.unique(owners):
                pieces.setdefault(int(unit), ids[owners == unit][:EXCERPT_TOKENS].tolist())
        named: list[dict[str, Any]] = []
        for unit, loss, tokens in culprits(everywhere)[:NAMED]:
            identity, origin = source.name(unit)
            named.append(shown(identity, origin, self.decode(pieces[unit]), loss, tokens))
        return named


def _seed(*parts: int) -> None:
    """Seed by step and rank, so that a resumed step draws the same numbers."""
    torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
