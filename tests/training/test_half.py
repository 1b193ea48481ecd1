"""FP16 with loss scaling on a real ZeRO-3 engine, see `half.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.storage import LocalStore, to_json
from tasks.settings import REPOSITORY
from tasks.training.job import Lease
from tasks.training.plan import StageSpec
from tasks.training.recipe import Optimizer, PretrainStage

pytestmark = pytest.mark.slow
CONFIG = PretrainStage(name="p", kind="pretrain", steps=1, optimizer=Optimizer(learning_rate=0.01))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("half")
    where = {"job": str(folder), "artifact": str(folder / "artifact"), "store": str(folder)}
    spec = StageSpec(recipe="r", stage="p", kind="pretrain", key="k" * 32, config=CONFIG, parents={}, data={}, **where)
    files = LocalStore(folder)
    files.write("spec.json", to_json(spec.model_dump(mode="json")))
    files.write("lease.json", to_json(Lease(token=3, host="here", pid=os.getpid(), started=0.0).model_dump()))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"LOCAL_SIZE": "1", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    script = Path(__file__).parent / "half.py"
    subprocess.run([sys.executable, str(script), str(folder)], env=environment, check=True, timeout=300)
    return json.loads((folder / "result.json").read_text())


def test_fp16_tracks_fp32(found):
    assert found["computes in"] == "torch.float16"
    for name in ("loss", "norm"):
        half, full = ([step[name] for step in found[kind]] for kind in ("fp16", "fp32"))
        assert half[:8] == pytest.approx(full, rel=0.01) and half[:8] != full
    assert found["fp16"][-1]["loss"] < found["fp16"][7]["loss"] and found["exported"] == ["torch.float32"]


def test_an_overflow_is_left_out_and_halves_the_scale(found):
    assert found["overflow"]["skipped"] and found["overflow"]["update_ratio"] == 0.0
    assert found["scale after overflow"] == found["scale before"] / 2
    assert not found["weights moved"] and found["weights moved after"], "the next step counts again"
    assert not found["after"]["skipped"] and found["after"]["norm"] > 0
