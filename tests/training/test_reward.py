"""Reward models: packed pairs score as separate ones, a known preference is learnt on two ranks, exports reload."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tasks.corpus.artifact import read_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import write_json
from tasks.errors import ConfigError, DataError
from tasks.evaluation.rewards import calibration_error, correlation, interval, pair_metrics
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.data import collate_tight
from tasks.training.losses import IGNORED
from tasks.training.model import load_model
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.preferences.packing import pack_pairs
from tasks.training.preferences.pairs import Pair, pairs_of, read_preferences
from tasks.training.preferences.records import read_preference
from tasks.training.recipe import RewardStage
from tasks.training.reward_model import criteria_of, encode_answer, load_reward_model, scores, with_score_head
from tests.training.jobs import finish, steps_of
from tests.training.tuning_data import LENGTH, make_parent

WORDS = ["import", "return", "class", "self", "value", "string", "module", "function", "object", "file"]
REWARD: dict[str, Any] = {
    "name": "reward",
    "kind": "reward",
    "processes": 2,
    "micro_batch": 4,
    "sequence_length": 2 * LENGTH,
    "heldout_share": 0.2,
    "criteria": {"short": 1.0, "tidy": 0.5},
    "steps": 30,
    "epochs": 8,
    "checkpoint_every": 10,
    "optimizer": {"learning_rate": 5e-3, "warmup_steps": 2, "weight_decay": 0.0},
}


def make_preferences(folder: Path, count: int = 160) -> str:
    """URI of records whose right answer is known: the shorter one, and the one without marks."""
    chance = random.Random(0)
    records = []
    for number in range(count):
        said = chance.sample(WORDS, 4)
        prompt = f"Say {said[0]} and {said[1]} ({number})."
        if number % 2:
            record = {"responses": [" ".join(said[:2]), " ".join(said * 2)], "criterion": "short"}
        else:
            record = {"responses": [" ".join(said), "!! ".join(said) + "!!"], "criterion": "tidy"}
        records.append({"prompt": prompt, "ranks": [1, 2], "domain": "code", "synthetic": True, **record})
    write_shard(folder / "known.jsonl.zst", records)
    return str(folder)


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> str:
    return make_parent(tmp_path_factory.mktemp("parent"))


@pytest.fixture(scope="module")
def preferences(tmp_path_factory) -> str:
    return make_preferences(tmp_path_factory.mktemp("preferences"))


@pytest.fixture(scope="module")
def spec(parent, preferences) -> Any:
    def make(place: Path, **changes: Any) -> StageSpec:
        place.mkdir(parents=True, exist_ok=True)
        before = [
            {"name": "tokenizer", "kind": "tokenizer"},
            {"name": "pretrain", "kind": "pretrain", "steps": 1, "optimizer": {"learning_rate": 1e-3}},
        ]
        recipe = place / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({"name": "rewards", "stages": [*before, REWARD | changes]}))
        return plan_stage(
            str(recipe),
            "reward",
            store=str(place / "store"),
            home=str(place / "home"),
            preferences=preferences,
            parents={"pretrain": parent},
        )

    return make


@pytest.fixture(scope="module")
def trained(spec, tmp_path_factory) -> tuple[StageSpec, Any]:
    planned = spec(tmp_path_factory.mktemp("reward"))
    return planned, finish(planned)


def test_a_known_preference_is_learnt(trained, tmp_path):
    planned, job = trained
    losses = [step["loss"] for step in steps_of(job)]
    assert losses[0] == pytest.approx(np.log(2), abs=0.2) and losses[-1] < 0.35
    metrics = evaluate_stage(planned)
    assert metrics["accuracy"] >= 0.9 and metrics["accuracy_low"] > 0.6
    assert set(metrics["accuracy_by_criterion"]) == {"short", "tidy"}
    assert metrics["synthetic_share"] == 1.0
    assert metrics["before"] == pytest.approx(metrics["longer_is_better"]) and metrics["after"] == metrics["accuracy"]
    assert read_artifact(planned.artifact).kind == "reward"
    where = str(tmp_path / "metrics.json")
    write_json(where, metrics)
    result = run_gate("reward", {"metrics": where}, str(tmp_path / "gate"))
    assert result.passed and "judged by people" in " ".join(item.meaning for item in result.failures)
    write_json(where, metrics | {"accuracy_low": 0.49})
    assert not run_gate("reward", {"metrics": where}, str(tmp_path / "refused")).passed


def test_an_export_scores_as_training_did(trained, preferences):
    planned, _ = trained
    model, tokenizer = load_reward_model(planned.artifact), load_tokenizer(planned.artifact)
    assert criteria_of(model) == ["short", "tidy"]
    pairs = read_preferences(preferences, domain="code", heldout_share=0.2).splits["heldout"]
    packed = pack_pairs(pairs, tokenizer, ["short", "tidy"], 2 * LENGTH, Counter())
    alone = scores(model, [answer for both in packed.encoded for answer in both])
    causal: Any = with_score_head(Path(planned.parents["model"].uri), ["short", "tidy"], 0)
    state = model.state_dict()
    causal.load_state_dict({("lm_head.weight" if n == "score.weight" else n): w for n, w in state.items()})
    batch = collate_tight([packed[index] for index in range(len(packed))], tokenizer.pad_token_id)
    with torch.no_grad():
        logits = causal(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
    places = batch.labels != IGNORED
    assert batch.labels[places].tolist() == list(range(2 * len(packed.pairs)))
    np.testing.assert_allclose(logits[places], alone, atol=2e-5)
    assert packed.losses(logits[places], batch.labels[places]).shape == (2 * len(packed.pairs),)


def test_the_score_head_is_that_of_the_artifact_alone(trained, tmp_path):
    planned, _ = trained
    with pytest.raises(DataError, match="do not fit its configuration"):
        load_model(planned.artifact)  # as a causal language model it lacks a head


def test_equal_seeds_give_equal_heads(parent):
    heads = [with_score_head(Path(parent), ["a", "b"], seed).get_output_embeddings().weight for seed in (1, 1, 2)]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_what_does_not_fit_is_counted(parent):
    tokenizer = load_tokenizer(parent)
    records = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "long " * 300, "rejected": "c"},
        {"prompt": "a", "chosen": "<|im_end|>", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "c", "criterion": "other"},
    ]
    pairs = [pair for record in records for pair in pairs_of(read_preference(record))]
    counts: Counter[str] = Counter()
    assert len(pack_pairs(pairs, tokenizer, ["overall"], LENGTH, counts).pairs) == 1
    assert counts == {"too_long": 1, "special_token_in_text": 1, "other_criterion": 1}
    with pytest.raises(DataError, match="of 3 pairs none"):
        pack_pairs(pairs[1:], tokenizer, ["overall"], LENGTH, Counter())


def test_a_score_is_read_where_the_answer_ends(parent):
    tokenizer = load_tokenizer(parent)
    ids = encode_answer(tokenizer, [{"role": "user", "content": "a"}], "b")
    assert tokenizer.decode(ids).endswith("b<|im_end|>")


def test_criteria_have_weights():
    with pytest.raises(ValueError, match="every criterion needs a weight above 0"):
        RewardStage.model_validate(REWARD | {"criteria": {"short": 0.0}})


def test_a_recipe_without_preferences_says_so(spec, tmp_path):
    planned = spec(tmp_path)
    with pytest.raises(ConfigError, match="stage 'reward' reads preferences, but no URI was given for it"):
        plan_stage(
            str(tmp_path / "recipe.yaml"),
            "reward",
            store=planned.store,
            home=str(tmp_path),
            parents={"pretrain": planned.parents["model"].uri},
        )


def pair(chosen: str, rejected: str, prompt: str = "p") -> Pair:
    (found,) = pairs_of(read_preference({"prompt": prompt, "chosen": chosen, "rejected": rejected}))
    return found


def test_figures_of_pairs():
    pairs = [pair("- a\n- b", "cc", "p"), pair("a", "bbb", "q"), pair("aaaa", "b", "r"), pair("ab", "cd", "s")]
    found = pair_metrics(pairs, np.array([2.0, -1.0, 3.0, 0.0]))
    assert found["accuracy"] == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert found["longer_is_better"] == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert found["accuracy_when_shorter_is_better"] == 0 and found["accuracy_when_longer_is_better"] == 1
    assert found["length_correlation"] > 0.8 and found["format_correlation"] > 0.5
    assert correlation(np.zeros(3), np.ones(3)) == 0


def test_calibration_of_a_model_that_knows_itself():
    noise = np.random.default_rng(0)
    sure = noise.uniform(0, 4, 20_000)
    right = noise.random(20_000) < 1 / (1 + np.exp(-sure))
    assert calibration_error(np.where(right, sure, -sure)) < 0.02
    assert calibration_error(np.full(100, -9.0)) == pytest.approx(1, abs=1e-3), "sure, and always wrong"


def test_the_interval_is_over_prompts():
    right = np.array([1.0] * 50 + [0.0] * 50)
    wide = interval(right, ["a"] * 50 + ["b"] * 50)
    narrow = interval(right, [str(n) for n in range(100)])
    assert wide == (0.0, 1.0) and 0.35 < narrow[0] < 0.5 < narrow[1] < 0.65
