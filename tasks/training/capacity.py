"""What a recipe would need: parameters, layout, tokens a step, DeepSpeed's verdict on its configuration, and memory.

Nothing is trained, and no model is made: `python -m tasks plan --recipe 8xa100`.
"""

from dataclasses import dataclass
from typing import Any

from tasks.errors import ConfigError
from tasks.training.recipe import BaseStage, ModelShape, PretrainStage, Recipe, TokenizerStage, TrainedStage
from tasks.training.zero import deepspeed_config

GIB = 2**30
OFFLOADS = {"none": (False, False), "optimizer": (True, False), "all": (True, True)}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Need:
    """Memory for model states on one GPU and on one host, in bytes, by what is offloaded to the host."""

    offload: str
    gpu: int
    host: int


@dataclass(frozen=True)
class StagePlan:
    """One stage on its machines. `activations` are the least that must be kept, in bytes on one GPU."""

    stage: str
    parameters: int
    nodes: int
    gpus: int
    data_parallel: int
    tokens_per_step: int
    deepspeed: dict[str, Any]
    needs: list[Need]
    activations: int


def parameters(shape: ModelShape, vocabulary: int) -> tuple[int, int]:
    """Weights of a Llama of that shape, and those of its largest matrix."""
    head = shape.hidden_size // shape.heads
    attention = 2 * shape.hidden_size * shape.hidden_size + 2 * shape.hidden_size * head * shape.key_value_heads
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size + 2 * shape.hidden_size
    embedding = vocabulary * shape.hidden_size
    whole = shape.layers * layer + embedding * (1 if shape.tie_embeddings else 2) + shape.hidden_size
    return whole, max(embedding, shape.hidden_size * shape.intermediate_size)


def plan_of(recipe: Recipe) -> list[StagePlan]:
    """Every trained stage of a recipe, planned. Raises ConfigError when DeepSpeed refuses a configuration, or the
    recipe does not say how large its model is."""
    tokenizer = next((stage for stage in recipe.stages if isinstance(stage, TokenizerStage)), None)
    source = next((stage for stage in recipe.stages if isinstance(stage, PretrainStage | BaseStage)), None)
    if tokenizer is None or source is None:
        raise ConfigError(
            f"recipe {recipe.name}: no stage `pretrain` or `base` says how large the model is; nothing to plan from"
        )
    shape, vocabulary = _size(source, tokenizer)
    length = tokenizer.sequence_length
    return [
        _stage(stage, shape, vocabulary, getattr(stage, "sequence_length", length))
        for stage in recipe.stages
        if isinstance(stage, TrainedStage)
    ]


def _size(source: PretrainStage | BaseStage, tokenizer: TokenizerStage) -> tuple[ModelShape, int]:
    if isinstance(source, PretrainStage):
        return source.model, tokenizer.vocab_size
    from tasks.training.base import base_shape

    return base_shape(source.base)


def _stage(stage: TrainedStage, shape: ModelShape, vocabulary: int, length: int) -> StagePlan:
    layout = stage.parallel
    split = layout.tensor * layout.pipeline if layout else 1
    together = layout.sequence if layout else 1
    per_node = min(stage.processes, layout.gpus_per_node if layout else stage.processes)
    nodes = -(-stage.processes // per_node)
    whole, largest = parameters(shape, vocabulary)
    local = whole // split, largest // split  # of one tensor-parallel slice of one group of layers
    return StagePlan(
        stage=stage.name,
        parameters=whole,
        nodes=nodes,
        gpus=stage.processes,
        data_parallel=stage.processes // (layout.model_ranks if layout else 1),
        tokens_per_step=stage.sequences_per_step(length) * length,
        deepspeed=checked(stage),
        needs=[_need(name, stage, *local, split) for name in OFFLOADS],
        activations=_activations(stage, shape, vocabulary, length // together, split),
    )


def _need(offload: str, stage: TrainedStage, whole: int, largest: int, split: int) -> Need:
    """DeepSpeed's own estimate of ZeRO-3's model states over the ranks that share one slice; ZeRO-1's by hand."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    layout = stage.parallel
    sharing = stage.processes // split  # sequence-parallel ranks share ZeRO's states, too
    per_node = min(
        sharing, max(1, (layout.gpus_per_node if layout else stage.processes) // (layout.tensor if layout else 1))
    )
    if layout and layout.zero == 1:
        kept = 4 * whole  # weights and gradients in two bytes each; masters and moments are divided
        moved = 14 * whole // sharing
        return Need(offload, kept + (0 if offload != "none" else moved), 0 if offload == "none" else moved * per_node)
    optimizer, weights = OFFLOADS[offload]
    host, gpu, _ = estimate_zero3_model_states_mem_needs(
        whole,
        largest,
        num_gpus_per_node=per_node,
        num_nodes=-(-sharing // per_node),
        cpu_offload=optimizer,
        cpu_offload_params=weights,
        zero_init=True,
    )
    return Need(offload, gpu, host * (layout.tensor if layout else 1))


def _activations(stage: TrainedStage, shape: ModelShape, vocabulary: int, length: int, split: int) -> int:
    """The residual stream at every layer (recomputed within it, or some 16 times as much), and the logits in FP32."""
    width = BYTES[stage.precision] * stage.micro_batch * length
    layers = shape.layers // (stage.parallel.pipeline if stage.parallel else 1)
    kept = layers * width * shape.hidden_size * (1 if stage.activation_checkpointing else 16)
    return kept + stage.micro_batch * length * vocabulary * 4 // (stage.parallel.tensor if stage.parallel else 1)


def checked(stage: TrainedStage) -> dict[str, Any]:
    """DeepSpeed's configuration of a stage, after DeepSpeed's own check of it. Raises ConfigError with its reason."""
    import logging

    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    values = deepspeed_config(stage)
    try:
        DeepSpeedConfig(values)
    except (AssertionError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"stage '{stage.name}': DeepSpeed refuses its configuration: {error}") from None
    return values


def table(plan: StagePlan, stage: TrainedStage) -> list[str]:
    """A stage's plan in lines for a terminal."""
    layout = stage.parallel
    ways = f"tensor {layout.tensor} x sequence {layout.sequence} x pipeline {layout.pipeline}, " if layout else ""
    where = f"{plan.nodes} x {plan.gpus // plan.nodes} GPUs" if layout else f"{plan.gpus} CPU processes"
    lines = [
        f"{plan.stage}: {plan.parameters:,} parameters on {where}",
        f"  layout      {ways}data {plan.data_parallel}, ZeRO-{layout.zero if layout else 3}, {stage.precision}",
        f"  a step      {plan.tokens_per_step:,} tokens",
        "  DeepSpeed   its check of this configuration passed",
        f"  activations at least {plan.activations / GIB:.1f} GiB a GPU"
        + (" (recomputed within layers)" if stage.activation_checkpointing else ""),
        "  model states by DeepSpeed's estimate:",
        "    offloaded      GiB a GPU   GiB a host",
    ]
    for need in plan.needs:
        chosen = " <- chosen" if need.offload == (layout.offload if layout else "none") else ""
        room = layout.gpu_memory_gb * 1e9 if layout else None
        verdict = "" if room is None else ("  fits" if need.gpu + plan.activations < room else "  does not fit")
        lines.append(f"    {need.offload:12} {need.gpu / GIB:11.1f} {need.host / GIB:12.1f}{verdict}{chosen}")
    return lines
