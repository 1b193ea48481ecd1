"""Symptoms provoked in real runs of two ranks: the event is in the job's folder, with its evidence and its remedy."""

import random
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tasks.corpus.shards import write_shard
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.symptoms import changed
from tests.training.jobs import finish
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
    job = finish(spec)
    found = [orjson.loads(line) for line in (job.folder / "events.jsonl").read_bytes().splitlines()]
    (seen,) = [line for line in found if line["event"] == event]
    assert seen["runbook"] == f"plugins/RUNBOOK.md#{event}"
    assert changed(spec.config, seen["remedy"]) != spec.config  # type: ignore[arg-type]
