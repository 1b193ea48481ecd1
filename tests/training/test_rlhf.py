"""PPO and GRPO as real jobs on two ranks: a known preference is learnt near its reference, and resumed to the bit."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import write_json
from tasks.errors import ConfigError
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.job import Job, submit
from tasks.training.model import load_model
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import RlhfStage, load_recipe
from tasks.training.rl.policy import with_value_head, without_value_head
from tasks.training.rl.prompts import read_prompts
from tasks.training.rl.rollout import Sampler
from tasks.training.rl.scoring import exact_answer
from tests.training.jobs import finish, group_of, steps_of, wait_for_step
from tests.training.talker import LENGTH, make_instructions, make_preferences, make_talker

REWARD: dict[str, Any] = {
    "name": "reward.brief",
    "kind": "reward",
    "micro_batch": 8,
    "sequence_length": 3 * LENGTH,
    "heldout_share": 0.1,
    "steps": 30,
    "epochs": 8,
    "checkpoint_every": 30,
    "optimizer": {"learning_rate": 5e-3, "warmup_steps": 2, "weight_decay": 0.0},
}
RLHF: dict[str, Any] = {
    "name": "rlhf",
    "kind": "rlhf",
    "rewards": {"reward.brief": 1.0},
    "micro_batch": 16,
    "prompts": 32,
    "new_tokens": 24,
    "prompt_tokens": 32,
    "steps": 12,
    "updates": 2,
    "checkpoint_every": 4,
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1, "weight_decay": 0.0, "schedule": "constant"},
    "kl": {"coefficient": 0.1},
}
GRPO = RLHF | {"method": "grpo", "prompts": 8, "samples": 4}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, str]:
    """URIs of a model, its prompts, and pairs."""
    folder = tmp_path_factory.mktemp("given")
    return {
        "sft": make_talker(folder / "talker"),
        "instructions": make_instructions(folder / "talk"),
        "preferences": make_preferences(folder / "pairs"),
    }


@pytest.fixture(scope="module")
def made(given, tmp_path_factory) -> dict[str, str]:
    """The same, and a reward model trained on the pairs."""
    planned = plan(tmp_path_factory.mktemp("reward"), given, RLHF, "reward.brief")
    finish(planned)
    return given | {"reward.brief": planned.artifact}


def plan(place: Path, made: dict[str, str], stage: dict[str, Any], name: str = "rlhf") -> StageSpec:
    place.mkdir(parents=True, exist_ok=True)
    before = [
        {"name": "tokenizer", "kind": "tokenizer"},
        {"name": "pretrain", "kind": "pretrain", "steps": 1, "optimizer": {"learning_rate": 1e-3}},
        {"name": "sft", "kind": "sft", "steps": 1, "replay": 0.0, "optimizer": {"learning_rate": 1e-3}},
    ]
    (place / "recipe.yaml").write_text(yaml.safe_dump({"name": "brief", "stages": [*before, REWARD, stage]}))
    return plan_stage(
        str(place / "recipe.yaml"),
        name,
        store=str(place / "store"),
        home=str(place / "home"),
        instructions=made["instructions"],
        preferences=made["preferences"],
        parents={key: made[key] for key in ("sft", "reward.brief") if key in made},
    )


@pytest.fixture(scope="module")
def calm(made, tmp_path_factory) -> tuple[StageSpec, Job]:
    planned = plan(tmp_path_factory.mktemp("ppo"), made, RLHF)
    return planned, finish(planned)


def check_learnt(job: Job) -> None:
    lines = steps_of(job)
    rewards = [line["reward"] for line in lines]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.5
    assert lines[-1]["answer_tokens"] < lines[0]["answer_tokens"]
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6), "it begins as its reference"
    assert 0 < lines[-1]["kl"] < 1
    assert all(0.5 < line["ratio"] < 2 for line in lines)


@pytest.mark.slow
def test_ppo_learns_a_known_preference(calm):
    planned, job = calm
    check_learnt(job)
    artifact = read_artifact(planned.artifact)
    assert artifact.kind == "model" and artifact.metrics["last_reward"] > artifact.metrics["first_reward"]
    assert any(line["value_loss"] > 0 for line in steps_of(job))
    model, tokenizer = load_model(planned.artifact), load_tokenizer(planned.artifact)
    assert model.get_output_embeddings().weight.shape[0] == len(tokenizer), "the critic stays behind"


@pytest.mark.slow
def test_what_it_was_worth(calm, tmp_path):
    planned, _ = calm
    metrics = evaluate_stage(planned)
    assert metrics["heldout_reward"] > metrics["parent_heldout_reward"] and metrics["gain_low"] > 0
    assert 0 < metrics["heldout_kl"] < metrics["kl_bound"]
    assert metrics["answer_tokens"] < metrics["parent_answer_tokens"]
    assert (metrics["before"], metrics["after"]) == (metrics["parent_heldout_reward"], metrics["heldout_reward"])
    assert len(metrics["samples"]) == len(metrics["parent_samples"]) == 3
    where = str(tmp_path / "metrics.json")
    write_json(where, metrics)
    assert run_gate("rlhf", {"metrics": where}, str(tmp_path / "gate")).passed
    bad = {"general_loss_rise": 0.031, "heldout_kl": 2.0, "refusals_lost": 0.1, "heldout_reward": -99.0}
    for name, value in bad.items():
        write_json(where, metrics | {name: value})
        assert not run_gate("rlhf", {"metrics": where}, str(tmp_path / "refused")).passed


@pytest.mark.slow
def test_grpo_learns_it_too(made, tmp_path):
    job = finish(plan(tmp_path, made, GRPO))
    check_learnt(job)
    assert all(line["value_loss"] == 0 for line in steps_of(job))


@pytest.mark.slow
def test_killed_it_goes_on_to_the_bit(calm, made, tmp_path):
    planned, job = calm
    again = plan(tmp_path, made, RLHF)
    running = submit(again)
    wait_for_step(running, 5)
    for pid in group_of(running):
        os.kill(pid, signal.SIGKILL)
    finish(again)
    timed = ("seconds", "memory_mb", "tokens_per_second")
    same = [
        [{key: value for key, value in line.items() if not key.endswith(timed)} for line in steps_of(which)]
        for which in (job, Job.load(Path(again.job)))
    ]
    assert same[0] == same[1]
    assert read_artifact(again.artifact).files == read_artifact(planned.artifact).files


def test_one_pass_gives_the_parents_logits_and_a_value(given):
    model, parent = with_value_head(Path(given["sft"])), load_model(given["sft"])
    ids = torch.arange(12)[None]
    with torch.no_grad():
        both, plain = model(ids).logits, parent(ids).logits
    assert torch.equal(both[..., :-1], plain) and both[..., -1].abs().max() == 0
    state = {name: value.detach() for name, value in model.named_parameters()}
    assert set(without_value_head(state)) == {name for name, _ in parent.named_parameters()}


def test_draws_follow_the_distribution_and_stop(given):
    sampler = Sampler(given["sft"], 0.8, 24)
    tokenizer = load_tokenizer(given["sft"])
    config = RlhfStage.model_validate(RLHF)
    prompts = read_prompts(given["instructions"], config, tokenizer)[0]["train"]
    some = [prompt.ids for prompt in prompts[:6]]
    first, again = sampler.draw(some, 5, 4), sampler.draw(some, 5, 4)
    assert [answer.ids.tolist() for answer in first] == [answer.ids.tolist() for answer in again]
    for answer in first:
        assert answer.ended == (answer.ids[-1] in sampler.ends)
        assert not set(answer.ids[:-1]) & sampler.ends and 1 <= len(answer.ids) <= 24
    many = sampler.draw([some[0]] * 1500, 7, 500)
    with torch.no_grad():
        logits = sampler.model(torch.from_numpy(some[0])[None]).logits[0, -1]
    expected = (logits.float() / 0.8).softmax(0)
    counts = torch.bincount(torch.tensor([answer.ids[0] for answer in many]), minlength=len(expected))
    assert (counts / 1500 - expected).abs().max() < 0.06


def test_verifiable_answers():
    assert exact_answer("It is 1,234.50", "so: 1234.5") == 1
    assert exact_answer("12 or 13", "#### 12") == 0
    assert exact_answer("", "12") == 0
    assert exact_answer("  Paris ", "paris") == 1 and exact_answer("Rome", "Paris") == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "grpo"}, "samples must be 2 or more"),
        ({"prompts": 7}, "prompts must be a multiple of processes"),
        ({"temperature": 1.0}, r"not in \[0.7, 0.9\]"),
        ({"rewards": {"reward.brief": 0}}, "every reward needs a weight above 0"),
        ({"rewards": {"reward.kind": 1}}, "no earlier reward stage has that name"),
    ],
)
def test_impossible_recipes(tmp_path, given, changes, said):
    with pytest.raises(ConfigError, match=said):
        plan(tmp_path, given, RLHF | changes)


@pytest.mark.slow
def test_every_reward_is_a_parent(made, tmp_path):
    planned = plan(tmp_path, made, RLHF | {"rewards": {"reward.brief": 1.0, "exact_answer": 0.5}})
    assert set(planned.parents) == {"model", "reward.brief"}
    assert load_recipe(str(tmp_path / "recipe.yaml")).parents("rlhf")["reward.brief"] == "reward.brief"
