"""Export: what is written reloads to the bit; missing, unexpected or mis-shaped weights are errors."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import DataError
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.model import export_model, load_model, new_model
from tasks.training.recipe import ModelShape


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["the quick brown fox jumps over the lazy dog " * 20], 280, 32)


def shape(tied: bool) -> ModelShape:
    return ModelShape(
        hidden_size=16, intermediate_size=32, layers=1, heads=2, key_value_heads=1, context=32, tie_embeddings=tied
    )


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def exported(request, tokenizer, tmp_path):
    model = new_model(shape(request.param), tokenizer, seed=1)
    state = {name: torch.randn_like(weight) for name, weight in model.named_parameters()}
    export_model(state, model, tokenizer, tmp_path)
    return state, tmp_path, request.param


def test_reload_is_equal_to_the_bit(exported):
    state, folder, tied = exported
    again = load_model(folder)
    weights = again.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in state.items())
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"]) == tied
    assert ("lm_head.weight" in state) != tied
    assert again.generation_config is not None and again.generation_config.eos_token_id == [0, 3]


@pytest.mark.parametrize("change", ["missing", "unexpected", "mis-shaped"])
def test_weights_that_do_not_fit_are_errors(exported, change):
    _, folder, _ = exported
    weights = load_file(folder / "model.safetensors")
    if change == "missing":
        del weights["model.norm.weight"]
    elif change == "unexpected":
        weights["model.extra.weight"] = torch.ones(2)
    else:
        weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"norm|extra"):
        load_model(folder)


def test_pickled_weights_are_refused(exported):
    _, folder, _ = exported
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        load_model(folder)


def test_incomplete_state_is_not_exported(tokenizer, tmp_path):
    model = new_model(shape(True), tokenizer, seed=1)
    state = dict(model.named_parameters())
    del state["model.norm.weight"]
    with pytest.raises(DataError, match=r"model\.norm\.weight"):
        export_model({name: weight.detach() for name, weight in state.items()}, model, tokenizer, tmp_path)


def test_same_seed_same_weights(tokenizer):
    one, two, other = (new_model(shape(True), tokenizer, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
