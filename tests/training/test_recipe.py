"""Recipes and plans: typed, unknown keys answered with the nearest, keys that follow content."""

from pathlib import Path

import pytest

from tasks.errors import ConfigError, DataError
from tasks.settings import CONTRACTS
from tasks.training.plan import StageSpec
from tasks.training.recipe import load_recipe

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
    ]
    assert recipe.parents("pretrain") == {"tokenizer": "tokenizer"}
    assert recipe.parents("sft") == {"model": "pretrain"}


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
        load_recipe("tiny").stage("rlhf")


def test_key_follows_content_not_place(plan, tmp_path):
    here, there = plan("tokenizer", tmp_path / "a"), plan("tokenizer", tmp_path / "b")
    assert here.key == there.key and here.job != there.job
    assert StageSpec.model_validate_json(here.model_dump_json()) == here


def test_missing_inputs_are_named(plan, tmp_path):
    with pytest.raises(ConfigError, match="artifact of stage 'tokenizer'"):
        plan("pretrain", tmp_path)
    with pytest.raises(DataError, match="no artifact here"):
        plan("pretrain", tmp_path, {"tokenizer": str(tmp_path)})
