"""Symptoms of learning from rewards, told from a run's lines of progress (A §6.2, B §4.2, C §5 and §7)."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.training.recipe import RlhfStage
from tasks.training.symptoms import WINDOW, Symptom, oscillation

Line = dict[str, Any]
HALF = 5  # rounds that say how things are now, and how they were at the beginning
GONE = 0.5  # of answers' length, or of entropy, that makes a collapse
REPEATED = 0.3  # share of answers' 4-grams that were there before
WORSE = 0.25  # of a standard deviation by which another reward fell


def reward_oscillation(lines: Sequence[Line], config: RlhfStage) -> Symptom | None:
    """The reward swings with a period instead of rising (A §6.2)."""
    found = oscillation(lines, config, "reward")
    if found is None:
        return None
    remedy = {"optimizer.learning_rate": found.remedy["optimizer.learning_rate"], "prompts": 2 * config.prompts}
    evidence = found.evidence | {"histogram": lines[-1].get("reward_histogram")}
    return Symptom(event="reward_oscillation", step=found.step, evidence=evidence, remedy=remedy)


def kl_rising(lines: Sequence[Line], config: RlhfStage) -> Symptom | None:
    """The distance from the reference is beyond half its bound and still grows: soon it will end the run."""
    if len(lines) < 2 * HALF:
        return None
    before, now = _medians(lines, "kl")
    if now <= config.kl.bound / 2 or now <= 1.1 * statistics.median(line["kl"] for line in lines[-2 * HALF : -HALF]):
        return None
    remedy = {"kl.coefficient": max(0.01, 2 * config.kl.coefficient)}
    evidence = {"kl": round(now, 4), "at_the_beginning": round(before, 4), "bound": config.kl.bound}
    return Symptom(event="kl_rising", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def reward_hacking(lines: Sequence[Line], config: RlhfStage) -> Symptom | None:
    """The reward rises while another one falls, or answers shrink or grow beyond recognition (Gao et al. 2023)."""
    if len(lines) < 2 * HALF:
        return None
    before, now = _medians(lines, "reward")
    if now <= before:
        return None
    lost = {}
    for name in config.rewards:
        values = [line["rewards"][name] for line in lines]
        spread = statistics.pstdev(values[:WINDOW]) or 1e-9
        first, last = statistics.median(values[:HALF]), statistics.median(values[-HALF:])
        if last < first - max(spread, WORSE * abs(first)):
            lost[name] = [round(first, 4), round(last, 4)]
    long_before, long_now = _medians(lines, "answer_tokens")
    if GONE < long_now / max(1e-9, long_before) < 1 / GONE and not lost:
        return None
    evidence = {
        "reward": [round(before, 4), round(now, 4)],
        "rewards_lost": lost,
        "answer_tokens": [round(long_before, 1), round(long_now, 1)],
    }
    remedy = {"kl.coefficient": max(0.01, 2 * config.kl.coefficient)}
    return Symptom(event="reward_hacking", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def collapse_to_repetition(lines: Sequence[Line], config: RlhfStage) -> Symptom | None:
    """Answers say the same again and again, or the policy hardly chooses any more."""
    if len(lines) < 2 * HALF:
        return None
    entropy_before, entropy_now = _medians(lines, "entropy")
    repeated_before, repeated_now = _medians(lines, "repeated_share")
    collapsed = entropy_now < (1 - GONE) ** 2 * entropy_before
    if not collapsed and (repeated_now < REPEATED or repeated_now < 2 * repeated_before):
        return None
    evidence = {
        "entropy": [round(entropy_before, 4), round(entropy_now, 4)],
        "repeated_share": [round(repeated_before, 4), round(repeated_now, 4)],
    }
    remedy = {
        "entropy_weight": max(0.01, 2 * config.entropy_weight),
        "kl.coefficient": max(0.01, 2 * config.kl.coefficient),
    }
    return Symptom(event="collapse_to_repetition", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


def value_explosion(lines: Sequence[Line], config: RlhfStage) -> Symptom | None:
    """The critic's loss is ten times what it was: advantages mean nothing then."""
    values = [line["value_loss"] for line in lines]
    if len(values) < 2 * HALF or config.method != "ppo":
        return None
    before, now = statistics.median(values[:HALF]), statistics.median(values[-HALF:])
    if now <= 10 * max(before, 1e-3):
        return None
    remedy = {
        "value_weight": config.value_weight / 2,
        "value_clip": config.value_clip / 2,
        "optimizer.learning_rate": (config.optimizer.learning_rate or 0.0) / 2,
    }
    evidence = {"value_loss": round(now, 4), "at_the_beginning": round(before, 4)}
    return Symptom(event="value_explosion", step=lines[-1]["step"], evidence=evidence, remedy=remedy)


DETECTORS = (reward_oscillation, kl_rising, reward_hacking, collapse_to_repetition, value_explosion)


def reward_symptoms(lines: Sequence[Line], config: RlhfStage) -> list[Symptom]:
    """All that the lines of progress of a run show."""
    return [found for detect in DETECTORS if (found := detect(lines, config))]


def repeated_share(answers: Sequence[np.ndarray], size: int = 4) -> float:
    """Share of the answers' runs of `size` tokens that stood earlier in the same answer, in [0, 1]."""
    total = repeated = 0
    for ids in answers:
        runs = [tuple(ids[place : place + size].tolist()) for place in range(len(ids) - size + 1)]
        total += len(runs)
        repeated += len(runs) - len(set(runs))
    return repeated / total if total else 0.0


def _medians(lines: Sequence[Line], name: str) -> tuple[float, float]:
    """A figure's median over the first rounds, and over the last."""
    values = [line[name] for line in lines]
    return statistics.median(values[:HALF]), statistics.median(values[-HALF:])
