"""Real jobs: two ranks under ZeRO-3, through submit(); killed, cancelled, submitted twice, resumed to the bit."""

import itertools
import math
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.corpus.artifact import read_artifact, verify_artifact
from tasks.corpus.storage import join, upload_folder
from tasks.evaluation.report import report_uri
from tasks.evaluation.stages import evaluate_stage
from tasks.training.job import Job, LeaseLost, submit
from tasks.training.plan import plan_stage
from tasks.training.tracking import FOLDER, scalars
from tests.training.jobs import PATIENCE, RECIPE, finish, group_of, lease_of, steps_of, wait_for_step
from tests.training.test_tracking import events


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("first")


@pytest.fixture(scope="module")
def tokenizer(plan, place):
    spec = plan("tokenizer", place)
    finish(spec)
    return spec


@pytest.fixture(scope="module")
def pretrain(plan, place, tokenizer):
    spec = plan("pretrain", place, {"tokenizer": tokenizer.artifact})
    finish(spec)
    return spec


@pytest.fixture(scope="module")
def sft(plan, place, pretrain):
    spec = plan("sft", place, {"pretrain": pretrain.artifact})
    finish(spec)
    return spec


def test_artifacts_know_their_parents(tokenizer, pretrain, sft, corpus):
    chain = [verify_artifact(uri) for uri in (corpus, tokenizer.artifact, pretrain.artifact, sft.artifact)]
    for parent, child in itertools.pairwise(chain):
        assert child.parents[0] == parent.hash
    assert sft.parents["tokenizer"].hash == chain[1].hash, "whose token shards are replayed"
    assert sft.data["instructions"].hash == chain[-1].data["instructions"]
    assert [item.kind for item in chain[1:]] == ["tokenizer", "model", "model"]


def test_metrics_of_every_step(pretrain):
    steps = steps_of(Job.load(pretrain.job))
    assert [line["step"] for line in steps] == list(range(1, 25))
    for name in ("loss", "grad_norm", "update_ratio", "activation_max", "learning_rate", "padding_share", "memory_mb"):
        assert all(isinstance(line[name], int | float) for line in steps), name
    assert all(0 < line["communication_share"] < 1 <= line["imbalance"] for line in steps), "two ranks do talk"
    assert all(line["tokens_per_second"] > 0 for line in steps)
    assert (Path(pretrain.artifact) / "metrics.jsonl").read_bytes().count(b"\n") == 24


def test_tensorboard_has_every_figure_of_every_step(pretrain):
    job = Job.load(pretrain.job)
    shown = {
        (event.step, value.tag): value.simple_value
        for event in events(job.folder / FOLDER)
        for value in event.summary.value
    }
    expected = {(line["step"], name): value for line in steps_of(job) for name, value in scalars(line)}
    assert shown == pytest.approx(expected, rel=1e-6)


def test_pretraining_beats_a_unigram_model(tokenizer, pretrain):
    metrics = evaluate_stage(pretrain)
    assert (
        metrics["heldout_loss_low"] < metrics["heldout_loss"] < metrics["heldout_loss_high"] < metrics["unigram_loss"]
    )
    assert set(metrics["heldout_loss_by_group"]) <= {"code", "en", "zh"}
    by_source = metrics["heldout_loss_by_source"]
    assert {"stdlib", "docstrings"} <= set(by_source) and min(by_source.values()) <= metrics["heldout_loss"]
    assert metrics["perplexity_by_source"] == pytest.approx({name: math.exp(loss) for name, loss in by_source.items()})
    assert metrics["tokens"] == sum(line["tokens"] for line in steps_of(Job.load(pretrain.job)))


def test_tuning_beats_its_parent(sft):
    metrics = evaluate_stage(sft)
    assert metrics["heldout_loss"] < metrics["parent_heldout_loss"]
    assert metrics["gain_low"] > 0
    assert evaluate_stage(sft) == metrics, "a second call reads what the first wrote"


def test_every_stage_has_a_report(tokenizer, pretrain, sft):
    for spec in (tokenizer, pretrain, sft):
        evaluate_stage(spec)
        page = Path(report_uri(spec.store, read_artifact(spec.artifact).hash)).read_text(encoding="utf-8")
        assert f"Stage {spec.stage} of recipe micro" in page
        assert not re.search(r"(?:src=|href=|url\(|@import|<script|<link)", page), "nothing from elsewhere"
        if spec is not tokenizer:
            curves = ("Loss, nats", "Gradient norm", "Learning rate", "Tokens a second", "communication", "Memory")
            assert all(words in page for words in curves) and page.count("<polyline") >= 9
    assert "<h3>Before</h3>" in page and "<h3>After</h3>" in page and "Before and after" in page


def test_tokenizer_metrics(tokenizer):
    metrics = evaluate_stage(tokenizer)
    assert metrics["roundtrip_failures"] == 0 and metrics["padding"] == 0
    assert {"fertility_en", "fertility_zh", "fertility_code"} <= set(metrics)


def test_the_last_model_loads_and_generates(sft):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(sft.artifact)
    tokenizer = AutoTokenizer.from_pretrained(sft.artifact)
    asked = [{"role": "user", "content": "What does dedent do?"}]
    prompt: Any = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output: Any = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert output.shape[1] > prompt["input_ids"].shape[1]


def test_many_submit_one_job_and_cancel_ends_it(plan, tokenizer, tmp_path):
    spec = plan("pretrain", tmp_path, {"tokenizer": tokenizer.artifact})
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(submit, [spec] * 8))
    assert {lease_of(job).token for job in jobs} == {1}
    job = jobs[0]
    wait_for_step(job, 1)
    assert len(group_of(job)) == 3, "a supervisor and two ranks"
    job.cancel()
    assert group_of(job) == []
    assert job.status().state == "failed"
    assert not spec.finished
    with pytest.raises(LeaseLost):
        job.beat(0)


def test_finished_stage_starts_nothing(plan, place, tokenizer, pretrain):
    job = submit(plan("pretrain", place, {"tokenizer": tokenizer.artifact}))
    assert job.status().state == "succeeded"
    assert lease_of(job).token == 1


@pytest.mark.slow
def test_stage_with_everything_on_s3(pretrain, instructions, sft, bucket, tmp_path):
    """Parent, instructions and artifact in a bucket: the same model comes out."""
    parent, records = join(bucket, "parent"), join(bucket, "instructions")
    upload_folder(Path(pretrain.artifact), parent)
    upload_folder(Path(instructions), records)
    spec = plan_stage(
        RECIPE,
        "sft",
        store=join(bucket, "store"),
        home=str(tmp_path),
        instructions=records,
        parents={"pretrain": parent},
    )
    finish(spec)
    assert verify_artifact(spec.artifact).hash == read_artifact(sft.artifact).hash


def test_a_failure_says_why(plan, place, tokenizer, tmp_path):
    spec = plan("sft", tmp_path, {"pretrain": tokenizer.artifact})
    job = submit(spec)
    status = job.wait(PATIENCE)
    assert status.state == "failed"
    assert "config" in status.message, "a tokenizer is no model, and the message says so"
    deadline = time.monotonic() + 10  # its last act is to write the exit record; then it has only to end
    while group_of(job) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert group_of(job) == []


@pytest.mark.slow
def test_a_trainer_cancelled_from_another_host_stops_by_itself(plan, tokenizer, tmp_path, monkeypatch):
    job = submit(plan("pretrain", tmp_path, {"tokenizer": tokenizer.artifact}))
    wait_for_step(job, 1)
    group = group_of(job)
    monkeypatch.setattr(socket, "gethostname", lambda: "triggerer-0")
    job.cancel()
    monkeypatch.undo()
    until = time.monotonic() + 60
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in group):
        assert time.monotonic() < until, "the trainer goes on"
        time.sleep(0.2)
    assert job.status().message == "cancelled"
