"""Rollouts: answers drawn from weights gathered once, against sharded generation and against plain `generate`; and
what a round of PPO spends its time on. The model is of `tiny`'s shape, with random weights."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tasks.corpus.artifact import write_artifact
from tasks.settings import REPOSITORY
from tasks.tokens.tokenizer import load_tokenizer, train_tokenizer
from tasks.training.job import Job, submit
from tasks.training.model import export_model, new_model
from tasks.training.recipe import ModelShape
from tasks.training.reward_model import export_reward_model, with_score_head
from tests.benchmarks.rollout_side import MARK
from tests.training.talker import RLHF, make_instructions, make_preferences, plan

VOCABULARY = 8192
ROUNDS = 4  # the first is a warm-up
REPEATS = 3  # the best counts, on all sides alike
SIDE = Path(__file__).with_name("rollout_side.py")


def measure(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    model = make_model(scratch / "model")
    found = {kind: best(kind, model, scratch) for kind in ("once", "sharded", "plain")}
    rates = {kind: side["tokens"] / side["seconds"] for kind, side in found.items()}
    return {
        **found,
        "tokens_per_second": rates,
        "against_sharded": rates["once"] / rates["sharded"],
        "per_core_against_plain": rates["once"] / 2 / rates["plain"],
        "shares": shares(model, scratch),
    }


def make_model(folder: Path) -> Path:
    """An artifact: random weights, and a tokenizer whose unused places fill the vocabulary of `tiny`."""
    texts = [path.read_text(encoding="utf-8")[:4000] for path in sorted((REPOSITORY / "tasks").rglob("*.py"))]
    tokenizer = train_tokenizer(texts, VOCABULARY, 512)
    model = new_model(ModelShape(), tokenizer, seed=1)
    export_model({name: value.detach() for name, value in model.named_parameters()}, model, tokenizer, folder)
    sealed(folder, "model", "sft", {"peak_learning_rate": 1e-3})
    return folder


def sealed(folder: Path, kind: Any, stage: str, metrics: dict[str, Any]) -> None:
    write_artifact(str(folder), kind=kind, stage=stage, key="made", config_hash="", code_version=1, metrics=metrics)


def best(kind: str, model: Path, scratch: Path) -> dict[str, Any]:
    """The fastest of several runs, on two ranks, or on one process for `plain`."""
    return min((once(kind, model, scratch / f"{kind}-{n}") for n in range(REPEATS)), key=lambda side: side["seconds"])


def once(kind: str, model: Path, scratch: Path) -> dict[str, Any]:
    scratch.mkdir()
    ranks = 1 if kind == "plain" else 2
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks), "LOCAL_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, str(SIDE), kind, str(model), str(scratch)]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    printed = [process.communicate(timeout=600)[0].decode() for process in processes]
    line = next((line for text in printed for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise SystemExit(f"rollout {kind} did not end:\n{printed[0][-2000:]}")
    return orjson.loads(line.removeprefix(MARK))


def shares(model: Path, scratch: Path) -> dict[str, float]:
    """Where a round's time goes, with a reward model of the policy's size; the rest is bookkeeping between ranks."""
    judge = scratch / "judge"
    head: Any = with_score_head(model, ["overall"], 0)
    state = {name: value.detach() for name, value in head.named_parameters()}
    export_reward_model(state, model, ["overall"], load_tokenizer(model), judge)
    sealed(judge, "reward", "reward.brief", {"criteria": {"overall": 1.0}, "synthetic_share": 1.0})
    made = {
        "sft": str(model),
        "reward.brief": str(judge),
        "instructions": make_instructions(scratch / "talk"),
        "preferences": make_preferences(scratch / "pairs"),
    }
    stage = RLHF | {"new_tokens": 40, "prompt_tokens": 64, "steps": ROUNDS, "checkpoint_every": ROUNDS}
    job: Job = submit(plan(scratch / "run", made, stage))
    status = job.wait(600)
    if status.state != "succeeded":
        raise SystemExit(f"rollout: the run did not end: {status.message}")
    lines = [orjson.loads(line) for line in (job.folder / "progress.jsonl").read_bytes().splitlines()][1:]
    seconds = sum(line["seconds"] for line in lines)
    return {part: float(np.sum([line[f"{part}_seconds"] for line in lines]) / seconds)
            for part in ("rollout", "scoring", "update")}  # fmt: skip


def rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """(work, here, other, factor, bar, whether it is met), and where a round's time goes."""
    rate, found = figures["tokens_per_second"], figures
    wide, narrow = found["against_sharded"], found["per_core_against_plain"]
    told: list[tuple[str, ...]] = [
        ("rollout, two ranks, weights gathered once", f"{rate['once']:,.0f} tokens/s",
         f"sharded: {rate['sharded']:,.0f}", f"{wide:.1f}×", "≥ 5×", "met" if wide >= 5 else "missed"),
        ("the same for one core", f"{rate['once'] / 2:,.0f} tokens/s", f"plain generate: {rate['plain']:,.0f}",
         f"{narrow:.2f}×", "≥ 0.9×", "met" if narrow >= 0.9 else "missed"),
    ]  # fmt: skip
    return told + [(f"share of a PPO round: {name}", f"{share:.0%}", "", "", "", "")
                   for name, share in found["shares"].items()]  # fmt: skip
