"""Symptoms, each provoked on a recorded series; ordinary runs have none; every event has its entry in the runbook."""

import math
import re
from typing import Any

import numpy as np
import pytest

from tasks.settings import REPOSITORY
from tasks.training.recipe import Optimizer, PretrainStage, SftStage, TuningOptimizer
from tasks.training.symptoms import RUNBOOK, Symptom, changed, symptoms, wave

ENTRIES = (REPOSITORY / RUNBOOK).read_text(encoding="utf-8")
PRETRAIN = PretrainStage(
    name="p", kind="pretrain", steps=200, optimizer=Optimizer(learning_rate=0.01, warmup_steps=5), dropout=0.0
)
SFT = SftStage(name="s", kind="sft", steps=200, optimizer=TuningOptimizer(learning_rate=0.01))


def run(steps: int = 120, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of an ordinary run: a falling, noisy loss, held-out loss with it every ten steps."""
    draw = np.random.default_rng(seed)
    lines = []
    for step in range(1, steps + 1):
        loss = 4 + 5 * math.exp(-step / 40) + float(draw.normal(0, 0.05))
        line = {"step": step, "loss": loss, "grad_norm": float(np.exp(draw.normal(0, 0.3))), "update_ratio": 2e-3}
        line |= {"activation_max": 5 + float(draw.normal(0, 0.2)), "tokens_per_second": float(draw.uniform(800, 1200))}
        line |= {"seconds": 1.0, "data_seconds": 0.01, "padding_share": 0.02}
        line |= {"communication_share": float(draw.uniform(0.2, 0.4)), "imbalance": float(draw.uniform(1.0, 1.2))}
        lines.append(line | ({"heldout_loss": loss + 0.1} if step % 10 == 0 else {}))
    return lines


def only(lines: list[dict[str, Any]], config: PretrainStage | SftStage = PRETRAIN) -> Symptom:
    found = symptoms(lines, config)
    assert len(found) == 1, found
    (symptom,) = found
    assert f"### {symptom.event}\n" in ENTRIES
    assert changed(config, symptom.remedy) != config, "the remedy is a change of the recipe that is allowed"
    return symptom


@pytest.mark.parametrize("seed", range(25))
def test_an_ordinary_run_shows_nothing(seed):
    lines = run(seed=seed)
    assert all(symptoms(lines[:count], PRETRAIN) == [] for count in (1, 5, 30, 61, 120))


def test_overfitting():
    lines = run()
    for i, line in enumerate(line for line in lines if "heldout_loss" in line):
        line["heldout_loss"] = 5.0 - 0.2 * i if i < 6 else 4.0 + 0.1 * (i - 5)
    symptom = only(lines, SFT)
    assert symptom.event == "overfitting" and symptom.evidence["best_step"] == 60
    assert changed(SFT, symptom.remedy).steps == 60


def test_rising_heldout_loss_with_rising_training_loss_is_not_overfitting():
    lines = run()
    for i, line in enumerate(line for line in lines if "heldout_loss" in line):
        line["heldout_loss"] = line["loss"] = 5.0 - 0.2 * i if i < 6 else 4.0 + 0.1 * (i - 5)
    assert "overfitting" not in [found.event for found in symptoms(lines, SFT)]


@pytest.mark.parametrize(("ratio", "lower"), [(1e-2, True), (1e-6, False)])
def test_not_learning(ratio, lower):
    lines = run()
    for line in lines:
        line["update_ratio"] = ratio
        if "heldout_loss" in line:
            line["heldout_loss"] = 9.0
    symptom = only(lines)
    assert symptom.event == "not_learning"
    assert (changed(PRETRAIN, symptom.remedy).optimizer.learning_rate < 0.01) == lower


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"tokens_per_second": 300.0}, "machine"),
        ({"tokens_per_second": 300.0, "communication_share": 0.8}, "communication"),
        ({"imbalance": 1.8}, "imbalance"),
        ({"tokens_per_second": 300.0, "padding_share": 0.6}, "padding"),
        ({"data_seconds": 0.5}, "data"),
    ],
)
def test_slow_throughput(change, cause):
    lines = run()
    for line in lines[80:]:
        line.update(change)
    symptom = only(lines)
    assert symptom.event == "slow_throughput" and symptom.evidence["cause"] == cause


def test_growing_activations():
    lines = run()
    for line in lines[60:]:
        line["activation_max"] *= 1.1 ** (line["step"] - 60)
    assert only(lines).event == "growing_activations"


def test_violent_updates():
    lines = run()
    for line in lines:
        line["update_ratio"] = 0.2
    symptom = only(lines)
    assert symptom.event == "violent_updates"
    assert changed(PRETRAIN, symptom.remedy).optimizer.learning_rate == pytest.approx(0.0025)


@pytest.mark.parametrize("period", [6, 11, 25])
def test_oscillation(period):
    lines = run()
    for line in lines:
        line["loss"] += 3 * math.sin(2 * math.pi * line["step"] / period)
    symptom = only(lines)
    assert symptom.event == "oscillation" and symptom.evidence["period"] == pytest.approx(period, abs=1)


@pytest.mark.parametrize("seed", range(10))
def test_noise_and_trends_are_no_waves(seed):
    draw = np.random.default_rng(seed)
    assert wave(draw.normal(5, 1, 100))[0] == 0
    assert wave(np.linspace(9, 3, 100) + draw.normal(0, 0.3, 100))[0] == 0
    assert wave(np.cumsum(draw.normal(0, 0.2, 100)) + 9)[0] == 0
    assert wave(np.array([1.0, 2.0]))[0] == 0


def test_every_event_of_the_code_is_in_the_runbook():
    named: set[str] = set()
    for path in (REPOSITORY / "tasks").glob("[te][rv]a*/**/*.py"):  # training, evaluation
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'(?:_say|\.event)\(\s*(?:token, )?"([a-z_]+)"|Symptom\(\s*event="([a-z_]+)"', text))
    events = {name for pair in named for name in pair if name}
    assert {"rolled_back", "checkpoint_skipped", "ranks_restarted", "overfitting", "unsafe_answers"} <= events
    entries = set(re.findall(r"^### (\w+)$", ENTRIES, re.M))
    assert events == entries


def test_a_remedy_that_names_no_key_is_an_error():
    with pytest.raises(KeyError, match="learning_rat"):
        changed(PRETRAIN, {"optimizer.learning_rat": 1.0})
