"""How a model computes: initial weights, dropout, FP32 for chosen operations, what recomputing activations saves."""

import math
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import torch

from tasks.training.model import new_model
from tasks.training.numerics import ActivationRange, compute_in_fp32, drop_out, layers_of
from tasks.training.recipe import ModelShape

VOCAB = 64
SHAPE = ModelShape(hidden_size=64, intermediate_size=96, layers=4, heads=4, key_value_heads=2, context=32)


class Tokenizer:
    eos_token_id, pad_token_id = 0, 1

    def __len__(self) -> int:
        return VOCAB


def model_of(**changes) -> torch.nn.Module:
    return new_model(SHAPE.model_copy(update=changes), Tokenizer(), seed=2)


def spread(model: torch.nn.Module, name: str) -> float:
    """Standard deviation of a matrix over all layers."""
    return torch.cat([w.flatten() for n, w in model.named_parameters() if n.endswith(f"{name}.weight")]).std().item()


def ids(rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(2, VOCAB, (rows, length), generator=torch.Generator().manual_seed(0))


def test_plain_initialization_is_transformers_own():
    assert spread(model_of(), "down_proj") == pytest.approx(0.02, rel=0.05)
    assert spread(model_of(initial_range=0.1), "q_proj") == pytest.approx(0.1, rel=0.05)


def test_xavier_follows_the_matrix():
    model = model_of(initialization="xavier")
    for name, inputs, outputs in (("q_proj", 64, 64), ("k_proj", 64, 32), ("up_proj", 64, 96), ("down_proj", 96, 64)):
        assert spread(model, name) == pytest.approx(math.sqrt(2 / (inputs + outputs)), rel=0.05)
    assert spread(model, "embed_tokens") == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("scaling", "outputs", "inner", "queries"),
    [("depth", (2 * 4) ** -0.5, 1.0, 1.0), ("deepnorm", (8 * 4) ** -0.25, (8 * 4) ** -0.25, 1.0)],
)
def test_residual_scaling(scaling, outputs, inner, queries):
    plain, scaled = model_of(), model_of(residual_scaling=scaling)
    expected = {"o_proj": outputs, "down_proj": outputs, "v_proj": inner, "up_proj": inner, "gate_proj": inner}
    for name, gain in (expected | {"q_proj": queries, "k_proj": queries, "embed_tokens": 1.0}).items():
        assert spread(scaled, name) == pytest.approx(gain * spread(plain, name), rel=1e-4), name


def test_dropout_keeps_the_mean_and_rests_in_evaluation():
    model = model_of()
    exact = model.eval()(input_ids=ids()).logits
    drop_out(model, 0.2)
    assert torch.equal(model.eval()(input_ids=ids()).logits, exact)
    torch.manual_seed(0)
    drawn = torch.stack([model.train()(input_ids=ids()).logits for _ in range(40)])
    assert drawn.std(0).mean() > 0.01
    assert (drawn.mean(0) - exact).abs().mean() < drawn.std(0).mean()
    assert all(layer.self_attn.attention_dropout == 0.2 for layer in layers_of(model))


@pytest.mark.parametrize("operation", ["attention", "mlp", "logits"])
def test_a_chosen_operation_computes_in_fp32(operation):
    """With the same rounded weights: what FP32 gives, rounded once at the end (logits not at all)."""
    reference, lower, chosen = model_of().bfloat16().float(), model_of().bfloat16(), model_of().bfloat16()
    compute_in_fp32(chosen, [operation])
    x = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    angles = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(1)).bfloat16()

    def output(model, dtype: torch.dtype) -> torch.Tensor:
        if operation == "attention":
            positions = (angles.cos().to(dtype), angles.sin().to(dtype))
            return layers_of(model)[0].self_attn(x.to(dtype), positions, None)[0]
        part = layers_of(model)[0].mlp if operation == "mlp" else model.lm_head
        return part(x.to(dtype))

    exact, rounded, ours = (
        output(reference, torch.float32),
        output(lower, torch.bfloat16),
        output(chosen, torch.bfloat16),
    )
    assert ours.dtype == (torch.float32 if operation == "logits" else torch.bfloat16)
    assert torch.allclose(ours.float(), exact.to(ours.dtype).float(), rtol=1e-2, atol=1e-6)
    errors = [(item.float() - exact).square().mean() for item in (ours, rounded)]
    assert errors[0] < errors[1]


def test_activation_range():
    model, seen = model_of(), []
    for layer in layers_of(model):
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    watch = ActivationRange(model)
    model.train()(input_ids=ids())
    expected = max((item[0] if isinstance(item, tuple) else item).abs().max().item() for item in seen)
    assert watch.take() == pytest.approx(expected) and watch.take() == 0.0
    model.eval()(input_ids=ids())
    assert watch.take() == 0.0, "evaluation does not count"


def peak(work: Callable[[], None], scratch: Path) -> int:
    """Most bytes that tensors held at once while `work` ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    profiler.export_chrome_trace(str(scratch))
    events = orjson.loads(scratch.read_bytes())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]")


def test_recomputed_activations_need_less_memory_and_give_equal_gradients(tmp_path):
    gradients, peaks = [], []
    for recompute in (True, False):
        model = model_of(layers=12, intermediate_size=192).train()
        if recompute:
            model.activation_checkpointing_enable({"use_reentrant": False})
        peaks.append(peak(lambda: model(input_ids=ids(16, 32)).logits.square().mean().backward(), tmp_path / "t.json"))  # noqa: B023
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert peaks[0] < 0.5 * peaks[1], [f"{size / 1e6:.1f} MB" for size in peaks]
    print(f"peak of one step: {peaks[1] / 1e6:.1f} MB kept, {peaks[0] / 1e6:.1f} MB recomputed")
