"""Symptoms that a run shows while it trains, told from its lines of progress: a name, the evidence, the remedy.

Each row of the table of problems that the design follows (its sections are named below) has a detector here, in
`outputs.py` where it is about what a model writes, or in `spikes.py` where training itself reacts. An entry of the
runbook (plugins/RUNBOOK.md) has the same name, and `remedy` is a change of the recipe.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.settings import StrictModel
from tasks.training.recipe import TrainedStage

Line = dict[str, Any]  # one line of progress.jsonl
Remedy = dict[str, Any]  # dotted key of the stage → new value

RUNBOOK = "plugins/RUNBOOK.md"
WORSE = 3  # measurements after the best one, all worse, that make overfitting
FLAT = 0.005  # least share by which held-out loss must have fallen over FLAT_AFTER measurements
FLAT_AFTER = 4
WINDOW = 10  # steps that say how things are now
SLOWER = 0.7  # of the rate that the run had reached
WAITING = 0.2  # share of the time in which steps wait for data
UNEVEN = 1.5  # work of the busiest rank over the mean
PERIODS = 3  # of an oscillation, to call it one
WAVE = 0.6  # least autocorrelation of a wave
SWING = 0.1  # least standard deviation of a wave, as a share of the curve's level


class Symptom(StrictModel):
    """Something that went wrong, as an event: what was seen at which step, and what to change in the recipe."""

    event: str
    step: int
    evidence: dict[str, Any]
    remedy: Remedy


def overfitting(lines: Sequence[Line], config: TrainedStage) -> Symptom | None:
    """Held-out loss has risen for WORSE measurements in a row while training loss still falls (C §7, row 2)."""
    measured = [(line["step"], line["heldout_loss"], line["loss"]) for line in lines if "heldout_loss" in line]
    if len(measured) <= WORSE:
        return None
    best = min(range(len(measured)), key=lambda i: measured[i][1])
    after = [loss for _, loss, _ in measured[best:]]
    rising = len(after) > WORSE and all(a < b for a, b in itertools.pairwise(after[: WORSE + 1]))
    if not rising or measured[-1][2] >= measured[best][2]:
        return None
    evidence = {
        "best_step": measured[best][0],
        "heldout_loss": [round(loss, 4) for loss in after],
        "training_loss": [round(loss, 4) for _, _, loss in measured[best:]],
    }
    remedy: Remedy = {"dropout": max(0.1, config.dropout), "optimizer.weight_decay": 0.1, "steps": measured[best][0]}
    return Symptom(event="overfitting", step=measured[-1][0], evidence=evidence, remedy=remedy)


def not_learning(lines: Sequence[Line], config: TrainedStage) -> Symptom | None:
    """Held-out loss does not fall from the beginning on (C §7, row 2): mostly a rate too high or much too low."""
    measured = [(line["step"], line["heldout_loss"]) for line in lines if "heldout_loss" in line]
    if len(measured) < FLAT_AFTER:
        return None
    first, best = measured[0][1], min(loss for _, loss in measured[1:FLAT_AFTER])
    if best < first * (1 - FLAT):
        return None
    ratio = statistics.median(line.get("update_ratio", 0.0) for line in lines[-WINDOW:])
    rate = (config.optimizer.learning_rate or 0.0) * (0.3 if ratio > 1e-4 else 10)
    evidence = {"heldout_loss": [round(loss, 4) for _, loss in measured[:FLAT_AFTER]], "update_ratio": ratio}
    return Symptom(
        event="not_learning",
        step=measured[-1][0],
        evidence=evidence,
        remedy={"optimizer.learning_rate": min(rate, 1.0)},
    )


def slow_throughput(lines: Sequence[Line], config: TrainedStage) -> Symptom | None:
    """Tokens per second well below what the run had reached, steps that wait for data, or ranks that wait for one that
    has more to do (C §7, row 4). The evidence names the cause."""
    if len(lines) < 3 * WINDOW:
        return None
    rates = [line["tokens_per_second"] for line in lines[1:]]  # the first step warms up
    reached = max(statistics.median(rates[i : i + WINDOW]) for i in range(0, len(rates) - WINDOW, WINDOW))
    then, now = lines[1 : 1 + WINDOW], lines[-WINDOW:]
    rate, padding = _median(now, "tokens_per_second"), _median(now, "padding_share")
    waiting = sum(line.get("data_seconds", 0.0) for line in now) / sum(line["seconds"] for line in now)
    uneven = _median(now, "imbalance", 1.0)
    talking, before = (_median(some, "communication_share") for some in (now, then))
    if rate >= SLOWER * reached and waiting < WAITING and uneven < UNEVEN:
        return None
    causes = {
        "data": waiting >= WAITING,
        "imbalance": uneven >= UNEVEN,
        "padding": padding > 0.3,
        "communication": talking > before + 0.1,
        "machine": True,
    }
    evidence = {
        "cause": next(name for name, is_so in causes.items() if is_so),
        "tokens_per_second": round(rate, 1),
        "reached": round(reached, 1),
        "waiting_for_data": round(waiting, 3),
        "imbalance": round(uneven, 2),
        "padding_share": round(padding, 3),
        "communication_share": round(talking, 3),
        "communication_share_at_the_beginning": round(before, 3),
    }
    remedy: Remedy = {"micro_batch": config.micro_batch * 2}  # fewer gathers of a layer in a step, and evener shares
    return Symptom(event="slow_throughput", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def _median(lines: Sequence[Line], key: str, otherwise: float = 0.0) -> float:
    return statistics.median(line.get(key, otherwise) for line in lines)


def growing_activations(lines: Sequence[Line], config: TrainedStage) -> Symptom | None:
    """Activations ten times as large as at the beginning: what comes before a spike (C §7, row 1; §3.3)."""
    values = [line["activation_max"] for line in lines if "activation_max" in line]
    if len(values) < 2 * WINDOW:
        return None
    before, now = statistics.median(values[:WINDOW]), statistics.median(values[-WINDOW:])
    if now <= 10 * before:
        return None
    remedy: Remedy = {
        "fp32_operations": ["attention", "logits"],
        "optimizer.learning_rate": (config.optimizer.learning_rate or 0.0) * 0.5,
        "optimizer.clip_norm": min(config.optimizer.clip_norm, 0.5),
    }
    evidence = {"activation_max": round(now, 2), "at_the_beginning": round(before, 2)}
    return Symptom(event="growing_activations", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def violent_updates(lines: Sequence[Line], config: TrainedStage) -> Symptom | None:
    """After the warm-up a step still changes the weights by more than a twentieth of their norm (C §3.3)."""
    after = [line for line in lines if line["step"] > config.optimizer.warmup_steps + WINDOW and "update_ratio" in line]
    if len(after) < WINDOW:
        return None
    ratio = statistics.median(line["update_ratio"] for line in after[-WINDOW:])
    if ratio <= 0.05:
        return None
    remedy = {"optimizer.learning_rate": (config.optimizer.learning_rate or 0.0) * 0.05 / ratio}
    return Symptom(
        event="violent_updates", step=lines[-1]["step"], evidence={"update_ratio": round(ratio, 4)}, remedy=remedy
    )


def oscillation(lines: Sequence[Line], config: TrainedStage, series: str = "loss") -> Symptom | None:
    """A curve that swings with a period instead of settling (A §6.2, there a reward; it may be any series)."""
    values = np.array([line[series] for line in lines if line.get(series) is not None], float)
    period, strength = wave(values)
    if not period:
        return None
    remedy: Remedy = {
        "optimizer.warmup_steps": max(10, 2 * config.optimizer.warmup_steps),
        "optimizer.learning_rate": (config.optimizer.learning_rate or 0.0) * 0.5,
    }
    evidence = {"series": series, "period": period, "autocorrelation": round(strength, 3)}
    return Symptom(event="oscillation", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def wave(values: np.ndarray) -> tuple[int, float]:
    """Period and strength of a wave in a curve without its straight trend; (0, …) where there is none.

    A period counts when the autocorrelation there is a maximum of at least WAVE, the curve holds PERIODS of it, and
    the swing is no small change.
    """
    if len(values) < 12 or not np.isfinite(values).all():
        return 0, 0.0
    place = np.arange(len(values))
    rest = values - np.polyval(np.polyfit(place, values, 1), place)
    level = max(abs(float(np.mean(values))), 1e-9)
    if float(rest.std()) < SWING * level:
        return 0, 0.0
    lags = range(1, len(values) // PERIODS + 2)
    strength = [1.0, *(float(np.corrcoef(rest[:-lag], rest[lag:])[0, 1]) for lag in lags)]
    for lag in range(3, len(strength) - 1):
        crossed = min(strength[1:lag]) < 0  # it went down in between, as a trend does not
        if crossed and strength[lag] >= WAVE and strength[lag - 1] <= strength[lag] >= strength[lag + 1]:
            return lag, strength[lag]
    return 0, 0.0


Detector = Callable[[Sequence[Line], TrainedStage], Symptom | None]
DETECTORS: tuple[Detector, ...] = (
    overfitting,
    not_learning,
    slow_throughput,
    growing_activations,
    violent_updates,
    oscillation,
)


def symptoms(lines: Sequence[Line], config: TrainedStage) -> list[Symptom]:
    """All that the lines of progress show."""
    return [found for detect in DETECTORS if (found := detect(lines, config))]


def changed(config: TrainedStage, remedy: Remedy) -> TrainedStage:
    """The stage with a remedy applied. Raises ValidationError when the change makes no sense."""
    values = config.model_dump()
    for key, value in remedy.items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place[part]
        if last not in place:
            raise KeyError(key)
        place[last] = value
    return type(config).model_validate(values)
