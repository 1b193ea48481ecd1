"""Two ranks over gloo, twenty times: no run hangs, no figure is none, and all are alike to the bit."""

import math
import time

import pytest

from tasks.corpus.artifact import read_artifact
from tests.training.jobs import finish, steps_of

pytestmark = pytest.mark.slow

RUNS = 20
SAME = ("step", "loss", "grad_norm", "update_ratio", "activation_max", "learning_rate", "tokens")


def test_twenty_runs_neither_hang_nor_differ(plan, tmp_path):
    tokenizer = plan("tokenizer", tmp_path / "tokenizer")
    finish(tokenizer)
    seen, took = set(), []
    for number in range(RUNS):
        spec = plan("pretrain", tmp_path / str(number), parents={"tokenizer": tokenizer.artifact})
        start = time.monotonic()
        figures = tuple(line[name] for line in steps_of(finish(spec)) for name in SAME)
        assert figures and all(math.isfinite(value) for value in figures), f"run {number}"
        seen.add((figures, read_artifact(spec.artifact).hash))
        took.append(time.monotonic() - start)
    assert len(seen) == 1
    print(f"{RUNS} runs of two ranks: {min(took):.0f} to {max(took):.0f} s each")
