"""Symptoms provoked in real runs of two ranks: the event is in the job's folder, with its evidence and its remedy."""

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
import yaml

from tasks.corpus.shards import write_shard
from tasks.training.job import Job, submit
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.symptoms import changed
from tests.training.jobs import PATIENCE, finish, group_of, wait_for_step
from tests.training.tuning_data import LENGTH, PEAK, make_parent

pytestmark = pytest.mark.slow

NEVER = {"loss_z": 1e9, "gradient_z": 1e9}  # spikes are another matter
SFT: dict[str, Any] = {
    "name": "sft",
    "kind": "sft",
    "unusual": True,
    "epochs": 1000,
    "replay": 0,
    "micro_batch": 4,
    "sequence_length": LENGTH,
    "heldout_share": 0.4,
    "patience": None,
    "rollback": NEVER,
    "checkpoint_every": 4,
}
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "knoll", "larch")
CASES: dict[str, dict[str, Any]] = {
    "growing_activations": {
        "steps": 60,
        "optimizer": {"learning_rate": 2e-2, "warmup_steps": 1, "schedule": "constant"},
    },
    "overfitting": {
        "steps": 120,
        "checkpoint_every": 10,
        "optimizer": {"learning_rate": 5e-3, "warmup_steps": 2, "schedule": "constant"},
    },
    "not_learning": {"steps": 24, "optimizer": {"learning_rate": 1e-9, "warmup_steps": 0}},
    "violent_updates": {"steps": 30, "optimizer": {"learning_rate": 0.9, "warmup_steps": 0, "schedule": "constant"}},
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> str:
    return make_parent(tmp_path_factory.mktemp("parent"))


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    """Forty questions with answers drawn at random."""
    folder = tmp_path_factory.mktemp("records")
    records, draw = [], random.Random(0)
    for i in range(40):
        answer = " ".join(draw.choice(WORDS) for _ in range(6))
        messages = [{"role": "user", "content": f"Number {i}?"}, {"role": "assistant", "content": answer}]
        records.append({"messages": messages, "source": "made", "category": "general"})
    write_shard(folder / "records.jsonl.zst", records)
    return str(folder)


def spec_of(place: Path, stage: dict[str, Any], parent: str, records: str) -> StageSpec:
    before = [
        {"name": "tokenizer", "kind": "tokenizer"},
        {"name": "pretrain", "kind": "pretrain", "steps": 1, "optimizer": {"learning_rate": PEAK}},
    ]
    (place / "recipe.yaml").write_text(yaml.safe_dump({"name": "made", "stages": [*before, stage]}))
    where = {"store": str(place / "store"), "home": str(place / "home")}
    return plan_stage(str(place / "recipe.yaml"), "sft", instructions=records, parents={"pretrain": parent}, **where)


@pytest.mark.parametrize("event", CASES)
def test_a_run_that_goes_wrong_says_how(event, parent, records, tmp_path):
    spec = spec_of(tmp_path, SFT | CASES[event], parent, records)
    told(finish(spec), spec, event)


def test_a_machine_that_slows_down_is_told(parent, records, tmp_path):
    """From the 15th step on one rank is stopped for three quarters of the time: the other has to wait for it."""
    stage = SFT | {"steps": 45, "checkpoint_every": 45, "optimizer": {"learning_rate": 1e-3}}
    spec = spec_of(tmp_path, stage, parent, records)
    job = submit(spec)
    wait_for_step(job, 15)
    ranks = [psutil.Process(pid) for pid in group_of(job)]
    slow = next(process for process in ranks if "tasks.training.worker" in process.cmdline())
    begun = (job.progress() or {})["seconds"]
    while job.status().state == "running":
        with suppress(psutil.NoSuchProcess):
            slow.suspend()
            time.sleep(3 * begun)
            slow.resume()
            time.sleep(begun)
    assert job.wait(PATIENCE).state == "succeeded", job.log.read_text()[-3000:]
    seen = told(job, spec, "slow_throughput")
    assert seen["evidence"]["cause"] in ("communication", "machine")
    assert seen["evidence"]["tokens_per_second"] < 0.7 * seen["evidence"]["reached"]


def told(job: Job, spec: StageSpec, event: str) -> dict[str, Any]:
    """The event, once, with an entry of the runbook and a change that makes sense."""
    found = [orjson.loads(line) for line in (job.folder / "events.jsonl").read_bytes().splitlines()]
    (seen,) = [line for line in found if line["event"] == event]
    assert seen["runbook"] == f"plugins/RUNBOOK.md#{event}"
    assert changed(spec.config, seen["remedy"]) != spec.config  # type: ignore[arg-type]
    return seen
