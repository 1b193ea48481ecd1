"""Real tuning jobs on two ranks: mixture, replay, curriculum, early stopping, adapters; resumed to the bit."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
import yaml

from tasks.cascade.search import search
from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import write_json
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.training.adapters import merged_from
from tasks.training.job import Job, submit
from tasks.training.model import load_model
from tasks.training.plan import StageSpec, plan_stage
from tests.training.tuning_data import LENGTH, PEAK, make_parent, make_records

PATIENCE = 300  # seconds; a job takes some ten on an idle machine
SFT: dict[str, Any] = {
    "name": "sft",
    "kind": "sft",
    "processes": 2,
    "micro_batch": 4,
    "sequence_length": LENGTH,
    "heldout_share": 0.2,
    "steps": 12,
    "checkpoint_every": 3,
    "optimizer": {"learning_rate": 2e-2, "warmup_steps": 1, "weight_decay": 0.1},
}
FULL = SFT | {
    "mixture": {"general": 0.6, "code": 0.4},
    "curriculum": {"strength": 3.0},
    "augmentation": {"share": 0.3},
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> str:
    return make_parent(tmp_path_factory.mktemp("parent"))


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    return make_records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def spec(parent, records, tmp_path_factory) -> Any:
    """`spec(stage, place)` → the plan of a recipe of that one stage behind a pretraining that is there already."""

    def make(stage: dict[str, Any], place: Path) -> StageSpec:
        place.mkdir(parents=True, exist_ok=True)
        before = [
            {"name": "tokenizer", "kind": "tokenizer"},
            {"name": "pretrain", "kind": "pretrain", "steps": 1, "optimizer": {"learning_rate": PEAK}},
        ]
        (place / "recipe.yaml").write_text(yaml.safe_dump({"name": "made", "stages": [*before, stage]}))
        return plan_stage(
            str(place / "recipe.yaml"),
            stage["name"],
            store=str(place / "store"),
            home=str(place / "home"),
            instructions=records,
            parents={"pretrain": parent},
        )

    return make


def finish(spec: StageSpec) -> Job:
    job = submit(spec)
    status = job.wait(PATIENCE)
    assert status.state == "succeeded", f"{status}\n{job.log.read_text()[-3000:]}"
    return job


def steps_of(job: Job) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (job.folder / "progress.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def full(spec, tmp_path_factory) -> StageSpec:
    """Everything at once, at a rate that soon does more harm than good."""
    made = spec(FULL, tmp_path_factory.mktemp("full"))
    finish(made)
    return made


def test_the_best_checkpoint_is_what_is_published(full):
    steps, metrics = steps_of(Job.load(full.job)), read_artifact(full.artifact).metrics
    losses = {line["step"]: line["heldout_loss"] for line in steps if "heldout_loss" in line}
    assert sorted(losses) == [3, 6, 9, 12]
    assert metrics["best_step"] == min(losses, key=lambda step: losses[step])
    assert (Path(full.job) / "checkpoints" / f"step-{metrics['best_step']:08d}").is_dir()


def test_curriculum_follows_the_losses(full):
    measured = [line for line in steps_of(Job.load(full.job)) if "weights" in line]
    assert len({tuple(line["weights"].values()) for line in measured}) > 1, "the mix moves"
    for line in measured:
        losses, weights = line["heldout_loss_by_category"], line["weights"]
        harder = max(losses, key=lambda name: losses[name])
        assert weights[harder] > {"general": 0.6, "code": 0.4}[harder] * 0.95
        assert weights["replay"] == 0.05 and sum(weights.values()) == pytest.approx(1)


def test_shares_and_rate_are_recorded(full):
    metrics = read_artifact(full.artifact).metrics
    assert metrics["shares"].keys() == {"general", "code", "replay"}
    assert metrics["parent_share"] == pytest.approx(2e-2 / PEAK)
    assert metrics["peak_learning_rate"] == 2e-2


@pytest.mark.slow
def test_killed_tuning_resumes_to_the_bit(spec, full, tmp_path):
    """Curriculum, held-out losses and the order of data survive: the same artifact comes out."""
    made = spec(FULL, tmp_path)
    job = submit(made)
    until = time.monotonic() + PATIENCE
    while ((job.progress() or {}).get("step") or 0) < 7:
        assert job.status().state == "running" and time.monotonic() < until, job.log.read_text()[-3000:]
        time.sleep(0.01)
    lease = job.lease()
    assert lease is not None
    os.killpg(lease.pid, signal.SIGKILL)
    while job.status().state == "running" and time.monotonic() < until:
        time.sleep(0.05)
    assert not made.finished
    finish(made)
    same = ("step", "loss", "heldout_loss", "weights", "tokens")
    first, second = steps_of(Job.load(full.job)), steps_of(job)
    assert [[line.get(name) for name in same] for line in second] == [
        [line.get(name) for name in same] for line in first
    ]
    assert read_artifact(made.artifact).hash == read_artifact(full.artifact).hash


@pytest.mark.slow
def test_adapters_apart_and_merged_are_equal_to_the_bit(spec, parent, tmp_path):
    """LoRA under ZeRO-3, stopped early: frozen weights are the parent's, adapters read back give the merged model."""
    stage = SFT | {
        "lora": {"rank": 4},
        "patience": 1,
        "steps": 40,
        "checkpoint_every": 2,
        "replay": 0,
        "optimizer": {"learning_rate": 0.5, "warmup_steps": 0},
    }
    made = spec(stage, tmp_path)
    job = finish(made)
    steps, metrics = steps_of(job), read_artifact(made.artifact).metrics
    assert metrics["stopped_early"] and steps[-1]["step"] < 40, "a rate of 0.5 soon does harm"
    assert metrics["best_step"] == steps[-1]["step"] - 2
    merged, base = load_model(made.artifact).state_dict(), load_model(parent).state_dict()
    again = merged_from(Path(parent), Path(made.artifact) / "adapter").state_dict()
    assert all(torch.equal(again[name], merged[name]) for name in merged)
    changed = {name for name in merged if not torch.equal(merged[name], base[name])}
    assert changed and all("_proj" in name for name in changed), "embeddings and norms stay"
    adapter = orjson.loads((Path(made.artifact) / "adapter" / "adapter_config.json").read_bytes())
    assert adapter["base_model_name_or_path"] == read_artifact(parent).hash


def test_what_tuning_was_worth(full, tmp_path):
    """Held-out, general and safety figures beside the parent's; this model was tuned to death, and its gate says so."""
    metrics = evaluate_stage(full)
    assert metrics["heldout_loss"] < metrics["parent_heldout_loss"] and metrics["gain_low"] > 0
    assert set(metrics["heldout_loss_by_category"]) == {"code", "general"}
    assert metrics["general_loss_rise"] == pytest.approx(metrics["general_loss"] / metrics["parent_general_loss"] - 1)
    assert len(metrics["safety_answers"]) == 32 and metrics["harmful_refused"] == 0.0
    assert "refusals 0% → 5%" in metrics["proposal"] and "general: 0.570" in metrics["proposal"]
    write_json(str(tmp_path / "metrics.json"), metrics)
    result = run_gate("sft", {"metrics": str(tmp_path / "metrics.json")}, str(tmp_path / "gate"))
    assert [item.severity for item in result.failures if "harmful prompts" in item.meaning] == ["warning"]
    assert "refusals 0% → 5%" in (tmp_path / "gate" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_adaptation_gains_in_the_domain_and_loses_little_elsewhere(spec, tmp_path):
    stage = {name: SFT[name] for name in ("processes", "micro_batch", "sequence_length", "heldout_share")}
    stage |= {"name": "adapt", "kind": "adapt", "steps": 100, "checkpoint_every": 50, "categories": ["code"]}
    stage |= {"optimizer": {"learning_rate": 1e-6, "warmup_steps": 2, "weight_decay": 0.0}}
    made = spec(stage, tmp_path)
    finish(made)
    metrics = evaluate_stage(made)
    assert metrics["steps"] == 100 and metrics["records"]["outside_domain"] > 100
    assert metrics["heldout_loss"] < metrics["parent_heldout_loss"]
    assert metrics["general_loss_rise"] < 0.03
    assert 0 <= metrics["parent_general_accuracy_low"] <= metrics["parent_general_accuracy"] <= 1
    where = str(tmp_path / "metrics.json")
    write_json(where, metrics)
    assert run_gate("adapt", {"metrics": where}, str(tmp_path / "gate")).passed
    for rise, passed in ((0.029, True), (0.031, False)):
        write_json(where, metrics | {"general_loss_rise": rise})
        assert run_gate("adapt", {"metrics": where}, str(tmp_path / f"gate-{rise}")).passed is passed


@pytest.mark.slow
def test_a_search_gives_a_table_and_a_plot(spec, parent, records, tmp_path):
    spec(SFT | {"steps": 6}, tmp_path)
    trials = search(
        str(tmp_path / "recipe.yaml"),
        "sft",
        {"optimizer.learning_rate": [1e-6, 5e-3]},
        store=str(tmp_path / "store"),
        home=str(tmp_path / "home"),
        instructions=records,
        parents={"pretrain": parent},
    )
    assert [trial["values"]["optimizer.learning_rate"] for trial in trials] == [5e-3, 1e-6], "the better one first"
    assert trials[0]["heldout_loss"] < trials[1]["heldout_loss"]
    folder = tmp_path / "store" / "searches" / "made.sft"
    assert orjson.loads((folder / "trials.json").read_bytes())["trials"] == trials
    assert "<svg" in (folder / "search.html").read_text(encoding="utf-8")
