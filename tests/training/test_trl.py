"""The loss of twenty steps beside TRL's: one process, conversations of unequal length, accumulation, a falling rate."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
import pytest

from tasks.settings import REPOSITORY
from tasks.tokens.chat import encode_conversation
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.recipe import Optimizer, SftStage
from tasks.training.schedule import learning_rate
from tests.benchmarks import training_trl
from tests.benchmarks.pace import Work
from tests.training.tuning_data import LENGTH, make_parent, make_records

STEPS = 20
OURS, THEIRS = (str(REPOSITORY / "tests" / "benchmarks" / f"training_{side}.py") for side in ("side", "trl"))


@pytest.fixture(scope="module")
def trl() -> Path:
    try:
        return training_trl.install()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"TRL cannot be installed here: {error.stderr.decode()[-300:]}")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Work:
    from tasks.training.instructions import read_instructions

    folder = tmp_path_factory.mktemp("trl")
    model = make_parent(folder / "parent")
    tokenizer = load_tokenizer(Path(model))
    config = SftStage.model_validate({"name": "s", "kind": "sft", "steps": 1, "optimizer": {"learning_rate": 1e-3}})
    records = read_instructions(make_records(folder / "records"), config).splits["train"][:160]
    pairs = [encode_conversation(tokenizer, record.messages) for record in records]
    kept = [(ids[:LENGTH].tolist(), mask[:LENGTH].tolist()) for ids, mask in pairs if mask[1:LENGTH].any()]
    (folder / "conversations.json").write_bytes(orjson.dumps(kept))
    assert len({len(ids) for ids, _ in kept}) > 20, "of unequal length"
    rates = [learning_rate(step, STEPS, Optimizer(learning_rate=1e-2, warmup_steps=3)) for step in range(STEPS)]
    return Work(model, str(folder / "conversations.json"), LENGTH, accumulation=2, threads=1, rates=rates)


def losses(script: str, arguments: list[str], work: Work, folder: Path, *paths: Path) -> np.ndarray:
    folder.mkdir()
    work = Work(**{**asdict(work), "losses": str(folder / "losses.json")})
    (folder / "work.json").write_bytes(orjson.dumps(asdict(work)))
    command = [sys.executable, script, *arguments, str(folder / "work.json"), str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, *paths)))}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return np.array(orjson.loads((folder / "losses.json").read_bytes()))


@pytest.mark.slow
def test_the_loss_of_every_step_is_trls(trl, work, tmp_path):
    ours = losses(OURS, ["own"], work, tmp_path / "ours")
    theirs = losses(THEIRS, [], work, tmp_path / "theirs", trl)
    print(f"largest difference of {STEPS} losses: {np.abs(ours / theirs - 1).max():.1e} of the loss")
    assert len(ours) == len(theirs) == STEPS and ours[-1] < ours[0] - 0.5, "it learns"
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)
