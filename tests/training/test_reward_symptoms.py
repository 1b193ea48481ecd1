"""Symptoms of learning from rewards, each provoked on a recorded series; an ordinary run has none."""

import math
from typing import Any

import numpy as np
import pytest

from tasks.settings import REPOSITORY
from tasks.training.recipe import RlhfStage
from tasks.training.rl.symptoms import repeated_share, reward_symptoms
from tasks.training.symptoms import RUNBOOK, Symptom, changed

ENTRIES = (REPOSITORY / RUNBOOK).read_text(encoding="utf-8")
CONFIG = RlhfStage.model_validate(
    {
        "name": "rlhf",
        "kind": "rlhf",
        "rewards": {"main": 1.0, "safety": 0.5},
        "steps": 100,
        "optimizer": {"learning_rate": 1e-4},
    }
)


def run(rounds: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of a run that goes well."""
    draw = np.random.default_rng(seed)
    lines = []
    for step in range(1, rounds + 1):
        main = 2 - 2 * math.exp(-step / 15) + float(draw.normal(0, 0.05))
        safety = 1 + float(draw.normal(0, 0.05))
        lines.append(
            {
                "step": step,
                "reward": main + 0.5 * safety,
                "rewards": {"main": main, "safety": safety},
                "kl": 0.1 * (1 - math.exp(-step / 10)),
                "entropy": 2 - 0.01 * step,
                "repeated_share": 0.02,
                "answer_tokens": 40 + float(draw.normal(0, 1)),
                "value_loss": 0.5 + float(draw.normal(0, 0.02)),
                "reward_histogram": [0] * 10,
            }
        )
    return lines


def only(lines: list[dict[str, Any]]) -> Symptom:
    (symptom,) = reward_symptoms(lines, CONFIG)
    assert f"### {symptom.event}\n" in ENTRIES
    assert changed(CONFIG, symptom.remedy) != CONFIG
    return symptom


@pytest.mark.parametrize("seed", range(10))
def test_an_ordinary_run_shows_nothing(seed):
    lines = run(seed=seed)
    assert all(reward_symptoms(lines[:count], CONFIG) == [] for count in (1, 9, 10, 25, 40))


@pytest.mark.parametrize("period", [5, 8])
def test_a_reward_that_swings(period):
    lines = run()
    for line in lines:
        line["reward"] = 2 + math.sin(2 * math.pi * line["step"] / period)
    symptom = only(lines)
    assert symptom.event == "reward_oscillation" and symptom.evidence["period"] == pytest.approx(period, abs=1)


def test_a_distance_that_grows():
    lines = run()
    for line in lines:
        line["kl"] = 0.02 * line["step"]
    assert only(lines).event == "kl_rising"
    for line in lines:
        line["kl"] = min(0.6, 0.04 * line["step"])
    assert reward_symptoms(lines, CONFIG) == [], "it settled"


def test_safety_that_pays_for_the_reward():
    lines = run()
    for line in lines:
        line["rewards"]["safety"] -= 0.03 * line["step"]
    symptom = only(lines)
    assert symptom.event == "reward_hacking" and list(symptom.evidence["rewards_lost"]) == ["safety"]


@pytest.mark.parametrize("growth", [0.97, 1.03])
def test_answers_of_another_length(growth):
    lines = run()
    for line in lines:
        line["answer_tokens"] *= growth ** line["step"]
    assert only(lines).event == "reward_hacking"


def test_answers_that_repeat_themselves():
    lines = run()
    for line in lines:
        line["repeated_share"] = 0.02 * line["step"]
    assert only(lines).event == "collapse_to_repetition"
    lines = run()
    for line in lines:
        line["entropy"] = 2 * math.exp(-line["step"] / 15)
    assert only(lines).event == "collapse_to_repetition"


def test_a_critic_that_explodes():
    lines = run()
    for line in lines[20:]:
        line["value_loss"] *= 40
    assert only(lines).event == "value_explosion"
    assert reward_symptoms(lines, CONFIG.model_copy(update={"method": "grpo"})) == []


def test_repeated_share():
    assert repeated_share([np.arange(20)]) == 0
    assert repeated_share([np.array([1, 2, 3, 4] * 3)]) == pytest.approx(5 / 9)
    assert repeated_share([np.array([1])]) == 0
