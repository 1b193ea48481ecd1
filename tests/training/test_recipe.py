"""Recipes and plans: typed, unknown keys answered with the nearest, keys that follow content."""

from pathlib import Path

import pytest

from tasks.errors import ConfigError, DataError
from tasks.settings import CONTRACTS
from tasks.training.plan import StageSpec
from tasks.training.recipe import SftStage, load_recipe

TINY = (CONTRACTS / "recipes" / "tiny.yaml").read_text()


def write(folder: Path, text: str) -> str:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return str(path)


def test_tiny_is_a_cascade():
    recipe = load_recipe("tiny")
    assert [(stage.name, stage.kind) for stage in recipe.stages] == [
        ("tokenizer", "tokenizer"),
        ("pretrain", "pretrain"),
        ("sft", "sft"),
        ("reward", "reward"),
        ("rlhf", "rlhf"),
    ]
    assert recipe.parents("pretrain") == {"tokenizer": "tokenizer"}
    assert recipe.parents("sft") == {"model": "pretrain"}
    assert recipe.parents("rlhf") == {"model": "sft", "reward": "reward"}
    assert recipe.data == {"corpus", "instructions", "preferences"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("vocab_size", "vocab_sise"),
        ("learning_rate", "learning_rat"),
        ("hidden_size", "hiden_size"),
        ("checkpoint_every", "checkpoints_every"),
        ("stages", "stage"),
    ],
)
def test_unknown_key_names_the_nearest(tmp_path, right, wrong):
    with pytest.raises(ConfigError, match=f"{wrong}.*did you mean '{right}'"):
        load_recipe(write(tmp_path, TINY.replace(f"{right}:", f"{wrong}:", 1)))


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        load_recipe("tinny")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("heads: 6", "heads: 5"), "even multiple of heads"),
        (("heldout_share: 0.03", "heldout_share: 2"), "less than 1"),
        (("name: sft", "name: pretrain"), "more than once: pretrain"),
        (("kind: sft", "kind: stf"), "'stf'"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, change, said):
    assert change[0] in TINY
    with pytest.raises(ConfigError, match=said):
        load_recipe(write(tmp_path, TINY.replace(change[0], change[1], 1)))


def test_stage_without_its_parent_is_refused(tmp_path):
    text = "name: x\nstages: [{name: a, kind: pretrain, steps: 1, optimizer: {learning_rate: 0.1}}]"
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        load_recipe(write(tmp_path, text))


def test_unknown_stage_lists_what_there_is():
    with pytest.raises(ConfigError, match="tokenizer, pretrain, sft"):
        load_recipe("tiny").stage("release")


def test_key_follows_content_not_place(plan, tmp_path):
    here, there = plan("tokenizer", tmp_path / "a"), plan("tokenizer", tmp_path / "b")
    assert here.key == there.key and here.job != there.job
    assert StageSpec.model_validate_json(here.model_dump_json()) == here


def test_missing_inputs_are_named(plan, tmp_path):
    with pytest.raises(ConfigError, match="artifact of stage 'tokenizer'"):
        plan("pretrain", tmp_path)
    with pytest.raises(DataError, match="no artifact here"):
        plan("pretrain", tmp_path, {"tokenizer": str(tmp_path)})


BEFORE = "{name: t, kind: tokenizer}, {name: p, kind: pretrain, steps: 1, optimizer: {learning_rate: 0.01}}"


def tuned(folder: Path, optimizer: str, more: str = "epochs: 2", kind: str = "sft", steps: int = 5) -> str:
    stage = f"{{name: s, kind: {kind}, steps: {steps}, optimizer: {{{optimizer}}}, {more}}}"
    return write(folder, f"name: x\nstages: [{BEFORE}, {stage}]")


@pytest.mark.parametrize(
    ("optimizer", "more", "said"),
    [
        ("parent_share: 0.04", "epochs: 2", "parent_share 0.04 is not in"),
        ("parent_share: 0.11", "epochs: 2", "parent_share 0.11 is not in"),
        ("parent_share: 0.08, learning_rate: 0.1", "epochs: 2", "either learning_rate or parent_share"),
        ("warmup_steps: 3", "epochs: 2", "either learning_rate or parent_share"),
        ("parent_share: 0.08", "epochs: 4", "epochs 4 are not in"),
        ("parent_share: 0.08", "epochs: 0.5", "epochs 0.5 are not in"),
        ("parent_share: 0.08", "lora: {rank: 2}, unfreezing: {every: 5}", "nothing is left to unfreeze"),
        ("parent_share: 0.08", "mixture: standard, curriculum: {by: difficulty}", "leave one of them out"),
        ("parent_share: 0.08", "mixture: {code: 0.5, general: 0.4}", "add up to 1, not 0.9"),
    ],
)
def test_unusual_tuning_is_refused_unless_said(tmp_path, optimizer, more, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe(tuned(tmp_path, optimizer, more))


def test_usual_and_meant_tuning_passes(tmp_path):
    for share, more in ((0.05, "epochs: 1"), (0.1, "epochs: 3"), (0.5, "unusual: true, epochs: 9")):
        assert load_recipe(tuned(tmp_path, f"parent_share: {share}", more)).notes() == []


def test_a_rate_outside_the_usual_share_is_noted(tmp_path):
    assert load_recipe(tuned(tmp_path, "learning_rate: 8.0e-4")).notes() == []
    (note,) = load_recipe(tuned(tmp_path, "learning_rate: 2.0e-3")).notes()
    assert "20% of its parent's" in note
    assert load_recipe(tuned(tmp_path, "learning_rate: 2.0e-3", "unusual: true")).notes() == []


@pytest.mark.parametrize(
    ("rate", "steps", "good"),
    [
        (1e-7, 100, True),
        (1e-6, 999, True),
        (1.1e-6, 200, False),
        (9e-8, 200, False),
        (5e-7, 99, False),
        (5e-7, 1000, False),
    ],
)
def test_adaptation_is_slow_and_short(tmp_path, rate, steps, good):
    path = tuned(tmp_path, f"learning_rate: {rate:.1e}", "categories: [legal]", "adapt", steps)
    if good:
        assert load_recipe(path).stage("s").kind == "adapt"
    else:
        with pytest.raises(ConfigError, match=r"optimizer\.learning_rate|steps"):
            load_recipe(path)


def test_standard_mixture(tmp_path):
    stage = load_recipe(tuned(tmp_path, "parent_share: 0.08", "mixture: standard")).stage("s")
    assert isinstance(stage, SftStage) and stage.mixture
    assert stage.mixture.shares == {"general": 0.3, "code": 0.25, "reasoning": 0.2, "creative": 0.15, "refusals": 0.1}
