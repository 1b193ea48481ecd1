"""Loss spikes: seen, rolled back, and traced to the documents that the step was taken on.

A step is a spike when its loss or gradient norm is no number, or far above those of the steps before it (a robust
z-score). Training then returns to the last whole checkpoint, passes over the spike's data and a margin before it, and
goes on at a lower rate (Chowdhery et al. 2022 skipped batches so for PaLM). What is passed over follows from
rollbacks.json alone, so a trainer killed afterwards goes on in the same way.
"""

import math
import statistics
from collections import deque
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tasks.corpus.privacy import excerpt
from tasks.corpus.storage import LocalStore, to_json
from tasks.errors import AthanorError
from tasks.settings import StrictModel
from tasks.training.recipe import Rollback, TrainedStage

FILE = "rollbacks.json"
CONSISTENT = 1.4826  # makes the median absolute deviation of a normal distribution its standard deviation
RECENT = 5  # steps whose median a step is compared with
LOSS_FLOOR = 0.02  # least scale of a loss, as a share of what is expected: a flat curve must not make noise a spike
GRADIENT_FLOOR = 0.25  # least scale of the logarithm of the gradient norm
NAMED = 10  # documents that a report names
EXCERPT_TOKENS = 200  # of each of them


class Spike(StrictModel):
    """A step that went wrong: what was seen (None: no number), what was expected, how far off that is."""

    step: int  # from 1, as reported
    kind: str
    value: float | None
    expected: float | None
    z: float | None


class Skip(StrictModel):
    """One rollback: the spike, the windows of data passed over, and the step (from 0) training went back to."""

    spike: Spike
    windows: list[int]
    back_to: int


class Series:
    """A curve, and how far a new value lies off it: its distance from the median of the last RECENT values, measured in
    robust standard deviations (median, MAD) of such distances. So a curve that falls steadily is no wide one."""

    def __init__(self, history: int) -> None:
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.distances: deque[float] = deque(maxlen=history)

    def z(self, value: float, floor: float) -> float:
        """Robust z-score; the scale is never less than `floor`."""
        center = statistics.median(self.distances)
        spread = CONSISTENT * statistics.median(abs(item - center) for item in self.distances)
        return (value - self.expected - center) / max(spread, floor)

    @property
    def expected(self) -> float:
        return statistics.median(self.recent)

    def add(self, value: float) -> None:
        if self.recent:
            self.distances.append(value - self.expected)
        self.recent.append(value)


class SpikeWatch:
    """Judges every step and knows which windows of data are passed over. The same on every rank."""

    name = "spikes"

    def __init__(self, folder: Path, config: Rollback) -> None:
        self.files, self.config = LocalStore(folder), config
        self.losses, self.gradients = Series(config.history), Series(config.history)
        self.skips: list[Skip] = []
        self.reread()

    def reread(self) -> None:
        """Take what rollbacks.json says."""
        known = orjson.loads(self.files.read(FILE)) if self.files.exists(FILE) else []
        self.skips = [Skip.model_validate(item) for item in known]

    def window(self, step: int) -> int:
        """The window of data of a step: windows in order, without those passed over."""
        skipped = sorted({window for skip in self.skips for window in skip.windows})
        for window in skipped:
            step += window <= step
        return step

    def rate_factor(self, step: int) -> float:
        """What the learning rate of a step is multiplied by."""
        return math.prod(self.config.rate_factor for skip in self.skips if skip.back_to <= step)

    def judge(self, step: int, loss: float, grad_norm: float) -> Spike | None:
        """Look at step `step` (from 1). A step that is no spike becomes part of the history."""
        if not math.isfinite(loss):
            return Spike(step=step, kind="loss_not_a_number", value=None, expected=None, z=None)
        if not math.isfinite(grad_norm):
            return Spike(step=step, kind="gradient_not_a_number", value=None, expected=None, z=None)
        gradient = math.log(max(grad_norm, 1e-30))
        if len(self.losses.distances) >= self.config.history // 2:
            expected = self.losses.expected
            z = self.losses.z(loss, LOSS_FLOOR * abs(expected))
            if z > self.config.loss_z:
                return Spike(step=step, kind="loss_spike", value=loss, expected=expected, z=round(z, 1))
            z = self.gradients.z(gradient, GRADIENT_FLOOR)
            if z > self.config.gradient_z:
                expected = math.exp(self.gradients.expected)
                return Spike(step=step, kind="gradient_spike", value=grad_norm, expected=expected, z=round(z, 1))
        self.losses.add(loss)
        self.gradients.add(gradient)
        return None

    def plan(self, spike: Spike) -> list[int]:
        """The windows to pass over. Raises AthanorError when there were rollbacks enough."""
        if len(self.skips) >= self.config.most:
            raise AthanorError(
                f"step {spike.step}: {describe(spike)}, after {len(self.skips)} rollbacks; lower the learning rate or "
                "clip_norm in the recipe, or look at the documents that events.jsonl names"
            )
        steps = range(max(0, spike.step - 1 - self.config.margin), spike.step)
        return [self.window(step) for step in steps]

    def write(self, skip: Skip) -> None:
        """Record a rollback, before it is carried out."""
        self.files.write(FILE, to_json([item.model_dump() for item in [*self.skips, skip]]))

    def state(self) -> list[list[float]]:
        return [list(part) for series in (self.losses, self.gradients) for part in (series.recent, series.distances)]

    def restore(self, state: list[list[float]]) -> None:
        self.losses, self.gradients = Series(self.config.history), Series(self.config.history)
        for series, place in ((self.losses, 0), (self.gradients, 2)):
            series.recent.extend(state[place])
            series.distances.extend(state[place + 1])


def describe(spike: Spike) -> str:
    """A spike in words."""
    if spike.value is None:
        return spike.kind.replace("_", " ")
    return f"{spike.kind.replace('_', ' ')} of {spike.value:.4g} (expected {spike.expected:.4g}, z {spike.z})"


def remedy_of(config: TrainedStage) -> dict[str, Any]:
    """What to change in the recipe when spikes come again (C §7, row 1): they are clipped earlier, and in a lower
    precision what overflows first is computed in FP32."""
    careful = {} if config.precision == "fp32" else {"fp32_operations": ["attention", "logits"]}
    return {"optimizer.clip_norm": config.optimizer.clip_norm / 2, **careful}


UnitLosses = dict[int, tuple[float, int]]  # document (or conversation) → sum of losses, number of tokens


def unit_losses(losses: np.ndarray, labelled: np.ndarray, units: list[np.ndarray]) -> UnitLosses:
    """Losses by document: `losses` and `labelled` are (rows, length), `units[row]` names each token's document."""
    found: UnitLosses = {}
    for row, owners in enumerate(units):
        places = np.flatnonzero(labelled[row, : len(owners)])
        found = merged(found, *({int(owners[place]): (float(losses[row, place]), 1)} for place in places))
    return found


def merged(*parts: UnitLosses) -> UnitLosses:
    """The sums over all parts."""
    total: UnitLosses = {}
    for part in parts:
        for unit, (loss, count) in part.items():
            known = total.get(unit, (0.0, 0))
            total[unit] = (known[0] + loss, known[1] + count)
    return total


def culprits(losses: UnitLosses) -> list[tuple[int, float, int]]:
    """(document, nats a token, tokens), the worst first; a loss that is no number is the worst of all."""
    ranked = [(unit, total / count, count) for unit, (total, count) in losses.items()]
    return sorted(ranked, key=lambda item: (-item[1] if math.isfinite(item[1]) else -math.inf, item[0]))


def report_html(skip: Skip, documents: list[dict[str, Any]]) -> str:
    """The spike and its documents as a page that needs nothing else; texts are masked and escaped."""
    rows = "".join(
        f"<tr><td>{escape(str(item['id']))}</td><td>{escape(str(item['source']))}</td><td>{item['loss']}</td>"
        f"<td>{item['tokens']}</td><td><pre>{escape(item['text'])}</pre></td></tr>"
        for item in documents
    )
    model = "the model after the spike" if skip.back_to == 0 and skip.spike.value else "the model of that checkpoint"
    return (
        "<!doctype html><meta charset=utf-8><title>Spike</title>"
        "<style>body{font:15px sans-serif;margin:2em}td,th{text-align:left;vertical-align:top;padding:.3em .8em}"
        "pre{white-space:pre-wrap;margin:0}</style>"
        f"<h1>Step {skip.spike.step}: {escape(describe(skip.spike))}</h1>"
        f"<p>Training went back to step {skip.back_to} and passed over windows {skip.windows}. "
        f"The documents of these windows, by the loss that {model} has on them:</p>"
        f"<table><tr><th>document<th>source<th>nats a token<th>tokens<th>text</tr>{rows}</table>"
    )


def shown(identity: str, source: str, text: str, loss: float, tokens: int) -> dict[str, Any]:
    """A document as a report may show it."""
    value = round(loss, 3) if math.isfinite(loss) else "not a number"
    return {"id": identity, "source": source, "loss": value, "tokens": tokens, "text": excerpt(text)}
