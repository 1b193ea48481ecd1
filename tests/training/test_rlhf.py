"""PPO and GRPO as real jobs on two ranks: a known preference is learnt near its reference, and resumed to the bit."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.corpus.artifact import read_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import write_json
from tasks.errors import ConfigError, DataError
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.job import Job, submit
from tasks.training.losses import IGNORED
from tasks.training.model import load_model
from tasks.training.numerics import SelectiveHead
from tasks.training.plan import StageSpec
from tasks.training.recipe import RlhfStage, load_recipe
from tasks.training.rl.policy import with_critic, with_value_head, without_critic
from tasks.training.rl.policy_loss import token_log_probs
from tasks.training.rl.prompts import Prompt, read_prompts
from tasks.training.rl.rollout import Sampler
from tasks.training.rl.rounds import batch
from tasks.training.rl.scoring import code_tests, exact_answer
from tests.training.jobs import finish, group_of, steps_of, wait_for_step
from tests.training.talker import GRPO, RLHF, check_learnt, make_instructions, make_preferences, make_talker, plan

REPLAY = {"prompts": 0.25, "answers": 0.5, "staleness": 2, "bound": 1.5}


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


@pytest.fixture(scope="module")
def calm(made, tmp_path_factory) -> tuple[StageSpec, Job]:
    planned = plan(tmp_path_factory.mktemp("ppo"), made, RLHF)
    return planned, finish(planned)


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
    killed_is_undisturbed(planned, job, plan(tmp_path, made, RLHF))


@pytest.mark.slow
def test_killed_it_remembers_what_it_replays(made, tmp_path):
    """The critic's own model, the buffers and the centroids go along with a checkpoint, too."""
    stage = RLHF | {"critic": "separate", "replay": REPLAY}
    planned = plan(tmp_path / "calm", made, stage)
    killed_is_undisturbed(planned, finish(planned), plan(tmp_path / "killed", made, stage))


def killed_is_undisturbed(planned: StageSpec, job: Job, again: StageSpec) -> None:
    """Every rank killed after five rounds, then finished: the same lines and the same files."""
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
    assert set(without_critic(state)) == {name for name, _ in parent.named_parameters()}


def test_a_critic_of_its_own_reads_the_same_tokens(given):
    model, parent = with_critic(Path(given["sft"]), "separate"), load_model(given["sft"])
    ids = torch.arange(12)[None]
    with torch.no_grad():
        both, plain = model(input_ids=ids, use_cache=False).logits, parent(ids).logits
        assert torch.equal(both[..., :-1], plain) and both[..., -1].abs().max() == 0
        head = SelectiveHead(model)
        with head.only(ids % 3 == 0):
            assert torch.equal(model(input_ids=ids, use_cache=False).logits, both[0, ::3])
    state = {name: value.detach() for name, value in model.named_parameters()}
    kept = without_critic(state)
    assert set(kept) == {name for name, _ in parent.named_parameters()}
    model(input_ids=ids, use_cache=False).logits[..., -1].sum().backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in model.policy.parameters()), "not its business"
    assert model.critic.get_output_embeddings().weight.grad.any()


@pytest.mark.slow
def test_replay_and_a_critic_of_its_own_on_two_ranks(given, tmp_path):
    """A short run: replayed answers are weighted, and the policy alone is exported."""
    changes = {"rewards": {"exact_answer": 1.0}, "critic": "separate", "replay": REPLAY, "prompts": 8, "steps": 4}
    planned = plan(tmp_path, given, RLHF | changes | {"updates": 1})
    lines = steps_of(finish(planned))
    assert all(line["ratio"] == pytest.approx(1, abs=1e-5) for line in lines), "the first update is on-policy"
    assert [line["replayed"] for line in lines] == [0, 4, 4, 4]
    assert all(0 < line["stale_weight"] <= 1.5 for line in lines[1:])
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6) and lines[-1]["kl"] > 0
    assert load_model(planned.artifact).get_output_embeddings().weight.shape[0] == len(load_tokenizer(given["sft"]))


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


def asked(reference: str = "", tests: str = "") -> Prompt:
    return Prompt("", np.zeros(0, np.int64), [], reference, "", tests)


def test_verifiable_answers():
    assert exact_answer("It is 1,234.50", asked("so: 1234.5")) == 1
    assert exact_answer("12 or 13", asked("#### 12")) == 0
    assert exact_answer("", asked("12")) == 0
    assert exact_answer("  Paris ", asked("paris")) == 1 and exact_answer("Rome", asked("Paris")) == 0
    right = "Add them:\n```python\ndef add(a, b):\n    return a + b\n```"
    assert code_tests(right, asked(tests="assert add(1, 2) == 3")) == 1
    assert code_tests(right, asked(tests="assert add(1, 2) == 4")) == 0
    assert code_tests(right, asked()) == 0, "where there are no tests nothing was passed"


def test_tests_come_from_the_records(tmp_path, given):
    records = [
        {"messages": [{"role": "user", "content": f"Add {n}"}, {"role": "assistant", "content": "."}],
         "tests": [f"assert add({n}) == {n}", "assert True"]}
        for n in range(40)
    ]  # fmt: skip
    write_shard(tmp_path / "code.jsonl", records)
    config = RlhfStage.model_validate(RLHF | {"rewards": {"code_tests": 1.0}})
    tokenizer = load_tokenizer(given["sft"])
    prompts = read_prompts(str(tmp_path), config, tokenizer)[0]["train"]
    assert {prompt.tests.count("\n") for prompt in prompts} == {1}
    with pytest.raises(DataError, match="no record of the train split has `tests`"):
        read_prompts(given["instructions"], config, tokenizer)


def test_prompts_of_some_categories(given):
    tokenizer, config = load_tokenizer(given["sft"]), RLHF | {"categories": ["law"]}
    prompts, counts = read_prompts(given["instructions"], RlhfStage.model_validate(config), tokenizer)
    assert {prompt.domain for prompt in prompts["train"]} == {"law"} and counts["other_category"] == 100


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.0, 1.7])
def test_rollout_log_probs_equal_recomputed_ones(given, temperature, monkeypatch):
    """What the sampler drew with, token by token behind a cache and padding, against one pass over whole answers."""
    sampler = Sampler(given["sft"], temperature, 24)
    generate, scores = sampler.model.generate, []

    def told(*inputs: Any, **options: Any) -> torch.Tensor:
        found = generate(*inputs, **options, output_scores=True, return_dict_in_generate=True)
        scores.append(torch.stack(found.scores, 1).log_softmax(-1))
        return found.sequences

    monkeypatch.setattr(sampler.model, "generate", told)
    config, tokenizer = RlhfStage.model_validate(RLHF), load_tokenizer(given["sft"])
    prompts = read_prompts(given["instructions"], config, tokenizer)[0]["train"][:12]
    answers = sampler.draw([prompt.ids for prompt in prompts], 3, 12)
    some = batch(prompts, answers, sampler.pad)
    places = some.labels != IGNORED
    with torch.no_grad():
        model = with_value_head(Path(given["sft"]))
        logits = model(input_ids=some.input_ids, position_ids=some.position_ids, use_cache=False).logits[places]
    again = token_log_probs(logits[:, :-1], some.labels[places], temperature)
    drawn = [scores[0][row, place, token] for row, item in enumerate(answers) for place, token in enumerate(item.ids)]
    np.testing.assert_allclose(again, torch.stack(drawn), atol=2e-4)
    assert len({len(answer.ids) for answer in answers}) > 1, "answers of several lengths"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "grpo"}, "samples must be 2 or more"),
        ({"prompts": 7}, "prompts must be a multiple of processes"),
        ({"temperature": 1.0}, r"not in \[0.7, 0.9\]"),
        ({"method": "grpo", "samples": 2, "critic": "separate"}, "grpo has no critic"),
        ({"replay": {}}, "replay of no prompts and no answers"),
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
