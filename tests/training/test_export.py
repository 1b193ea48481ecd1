"""Export: what is written reloads to the bit; missing, unexpected or mis-shaped weights are errors."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import DataError
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.adapters import ADAPTER, SAFE_WEIGHTS, export_adapted, merged_from, with_adapters
from tasks.training.model import export_model, load_model, new_model
from tasks.training.recipe import ModelShape
from tasks.training.tuning import Lora


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


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_resized_vocabulary_reloads_to_the_bit(tokenizer, tmp_path, tied):
    """As when special tokens are added to a base model: the embedding, and a head of its own, have the new rows."""
    model = new_model(shape(tied), tokenizer, seed=1)
    more = len(tokenizer) + 24
    model.resize_token_embeddings(more)
    state = {name: torch.randn_like(weight) for name, weight in model.named_parameters()}
    export_model(state, model, tokenizer, tmp_path)
    again = load_model(tmp_path)
    weights = again.state_dict()
    assert all(torch.equal(weights[name], weight) for name, weight in state.items())
    assert weights["lm_head.weight"].shape[0] == again.config.vocab_size == more


def test_a_tokenizer_larger_than_the_model_is_refused(tokenizer, tmp_path):
    model = new_model(shape(True), tokenizer, seed=1)
    model.resize_token_embeddings(len(tokenizer) - 1)
    state = {name: weight.detach() for name, weight in model.named_parameters()}
    with pytest.raises(DataError, match=f"{len(tokenizer)} tokens, the model embeddings for {len(tokenizer) - 1}"):
        export_model(state, model, tokenizer, tmp_path)


@pytest.fixture(scope="module")
def adapted(tokenizer, tmp_path_factory) -> tuple[Path, Path, dict[str, torch.Tensor], Lora]:
    """A parent, and what was gathered after its adapters had learnt something: all weights, the frozen ones too."""
    parent, config = tmp_path_factory.mktemp("parent"), Lora(rank=2)
    model = new_model(shape(True), tokenizer, seed=1)
    export_model({name: w.detach() for name, w in model.named_parameters()}, model, tokenizer, parent)
    under = with_adapters(load_model(parent), config, seed=0)
    torch.manual_seed(7)
    state = {n: torch.randn_like(w) if "lora_" in n else w.detach() for n, w in under.named_parameters()}
    folder = tmp_path_factory.mktemp("adapted")
    export_adapted(state, parent, "hash of the parent", config, tokenizer, folder)
    return parent, folder, state, config


def test_adapters_merged_and_apart_reload_to_the_bit(adapted):
    """Merged by hand: W + alpha / rank · B A; the adapters read back are those that were gathered."""
    parent, folder, state, config = adapted
    merged, base = load_model(folder).state_dict(), load_model(parent).state_dict()
    again = merged_from(parent, folder / ADAPTER).state_dict()
    assert all(torch.equal(again[name].view(torch.uint8), merged[name].view(torch.uint8)) for name in merged)
    apart = load_file(folder / ADAPTER / SAFE_WEIGHTS)
    gathered = {name.replace(".default", ""): weight for name, weight in state.items() if "lora_" in name}
    assert apart.keys() == gathered.keys()
    assert all(torch.equal(apart[name], weight) for name, weight in gathered.items())
    name = "model.layers.0.mlp.up_proj"
    down, up = (apart[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    by_hand = base[f"{name}.weight"] + config.alpha / config.rank * (up @ down)
    assert torch.allclose(merged[f"{name}.weight"], by_hand, atol=1e-5)
    for other in ("model.embed_tokens.weight", "model.norm.weight"):
        assert torch.equal(merged[other], base[other]), "frozen to the bit"


def test_a_frozen_weight_that_moved_is_an_error(adapted, tokenizer, tmp_path):
    parent, _, state, config = adapted
    moved = {**state, "base_model.model.model.norm.weight": state["base_model.model.model.norm.weight"] * 1.001}
    with pytest.raises(DataError, match=r"norm\.weight was frozen"):
        export_adapted(moved, parent, "hash", config, tokenizer, tmp_path)


@pytest.mark.parametrize("change", ["missing", "unexpected", "pickled"])
def test_adapters_that_do_not_fit_are_errors(adapted, tmp_path, change):
    parent, folder, _, _ = adapted
    shutil.copytree(folder / ADAPTER, tmp_path / ADAPTER)
    path = tmp_path / ADAPTER / SAFE_WEIGHTS
    weights = load_file(path)
    first = sorted(weights)[0]
    if change == "missing":
        del weights[first]
    elif change == "unexpected":
        weights[first.replace("layers.0", "layers.9")] = weights[first].clone()
    save_file(weights, path, metadata={"format": "pt"})
    if change == "pickled":
        torch.save(weights, path.with_name("adapter_model.bin"))
        path.unlink()
    with pytest.raises(DataError, match="safetensors"):
        merged_from(parent, tmp_path / ADAPTER)


def test_same_seed_same_weights(tokenizer):
    one, two, other = (new_model(shape(True), tokenizer, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
