"""Changes to how a model computes: dropout, FP32 for chosen operations, a head for chosen tokens; and a look at its
activations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tasks.training.recipe import Fp32Operation

MODULES: dict[Fp32Operation, str] = {"attention": "self_attn", "mlp": "mlp", "logits": "lm_head"}
LAST = ("o_proj", "down_proj")  # of an attention, of an MLP


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The decoder layers: the longest list of modules in the model."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len, default=[])


def drop_out(model: nn.Module, share: float) -> None:
    """Dropout on what attention and MLP add to the residual stream (Vaswani et al. 2017), and on attention weights."""
    if not share:
        return

    def drop(module: nn.Module, inputs: Any, output: Any) -> Any:
        first, *rest = output if isinstance(output, tuple) else (output,)
        dropped = functional.dropout(first, share, training=module.training)
        return (dropped, *rest) if isinstance(output, tuple) else dropped

    for layer in layers_of(model):
        for name, child in layer.named_children():
            if name in (MODULES["attention"], MODULES["mlp"]):
                child.register_forward_hook(drop)
        for module in layer.modules():
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = share


def compute_in_fp32(model: nn.Module, operations: Sequence[Fp32Operation]) -> None:
    """Let the named operations compute in FP32 in a model of lower precision.

    The results of their first linear maps stay FP32, so all up to their last one (scores and softmax of attention, the
    MLP's gate) is; that one returns to the model's precision. Logits stay FP32.
    """
    wanted = {MODULES[name] for name in operations}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and wanted.intersection(path.split(".")):
            keep: Any = module
            keep.forward = _in_fp32(module, returns=path.endswith(LAST))


def _in_fp32(linear: nn.Linear, returns: bool) -> Any:
    def forward(x: torch.Tensor) -> torch.Tensor:
        bias = None if linear.bias is None else linear.bias.float()
        result = functional.linear(x.float(), linear.weight.float(), bias)
        return result.to(linear.weight.dtype) if returns else result

    return forward


class SelectiveHead:
    """A model's head, or heads, that can be told which tokens' logits are wanted."""

    def __init__(self, model: Any) -> None:
        self._wanted: torch.Tensor | None = None
        heads = model.output_heads() if hasattr(model, "output_heads") else [model.get_output_embeddings()]
        for head in heads:
            head.register_forward_pre_hook(self._select)

    @contextmanager
    def only(self, wanted: torch.Tensor) -> Iterator[None]:
        """In here the head sees the tokens of a (batch, length) mask alone and gives (wanted, vocab)."""
        self._wanted = wanted
        try:
            yield
        finally:
            self._wanted = None

    def _select(self, module: nn.Module, inputs: Any) -> Any:
        return inputs if self._wanted is None else (inputs[0][self._wanted],)


class ActivationRange:
    """The largest absolute value that left any decoder layer since the last `take`."""

    def __init__(self, model: nn.Module) -> None:
        self._largest = 0.0
        for layer in layers_of(model):
            layer.register_forward_hook(self._see)

    def _see(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training:
            values = output[0] if isinstance(output, tuple) else output
            largest = float(values.detach().abs().amax())
            if not largest <= self._largest:  # NaN counts as larger, and stays
                self._largest = largest

    def take(self) -> float:
        """The range, which then begins anew."""
        largest, self._largest = self._largest, 0.0
        return largest
