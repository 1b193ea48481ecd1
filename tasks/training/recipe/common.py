"""What every stage of a recipe may say, and every stage that updates weights: model, optimizer, batches, spikes."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tasks.settings import StrictModel
from tasks.training.parallel import Parallel

Role = Literal["tokenizer", "model", "reward"]
Fp32Operation = Literal["attention", "mlp", "logits"]


class ModelShape(StrictModel):
    """A Llama decoder trained from scratch. The vocabulary's size comes from the tokenizer."""

    hidden_size: int = Field(192, ge=8)
    intermediate_size: int = Field(512, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(6, ge=1)
    key_value_heads: int = Field(3, ge=1)
    context: int = Field(512, ge=16, description="longest sequence in tokens")
    tie_embeddings: bool = True
    initial_range: float = Field(0.02, gt=0, description="standard deviation of the initial weights")
    initialization: Literal["normal", "xavier"] = Field(
        "normal", description="of matrices: one standard deviation for all, or by their size (Glorot & Bengio 2010)"
    )
    residual_scaling: Literal["none", "depth", "deepnorm"] = Field(
        "none", description="smaller initial weights on what is added to the residual stream, by the number of layers"
    )

    @model_validator(mode="after")
    def _divides(self) -> "ModelShape":
        if self.hidden_size % (2 * self.heads) or self.heads % self.key_value_heads:
            raise ValueError("hidden_size must be an even multiple of heads, and heads a multiple of key_value_heads")
        return self


class Optimizer(StrictModel):
    """AdamW (Loshchilov & Hutter 2017) with warm-up, then half a cosine, or a plateau and a decay (WSD), or neither."""

    learning_rate: float = Field(gt=0, le=1, description="peak, reached at the end of the warm-up")
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay_share: float = Field(0.2, gt=0, le=1, description="of WSD: share of the steps over which the rate falls")
    final_share: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the peak")
    warmup_steps: int = Field(10, ge=0)
    weight_decay: float = Field(0.1, ge=0, description="on matrices; never on norms")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip_norm: float = Field(1.0, gt=0, description="global gradient norm is clipped to this")


class StageConfig(StrictModel):
    """What every stage has. `consumes`: the roles of parent artifacts; `data`: corpora that it reads."""

    consumes: ClassVar[tuple[Role, ...]] = ()
    data: ClassVar[tuple[str, ...]] = ()

    name: str = Field(pattern=r"^[a-z][a-z0-9_.]*$")
    seed: int = Field(0, ge=0, lt=2**31)


class Rollback(StrictModel):
    """When a step counts as a spike, and what then happens: back to a checkpoint, past the data, at a lower rate."""

    most: int = Field(3, ge=0, description="rollbacks of one run; another spike fails it. 0: a spike fails it at once")
    history: int = Field(32, ge=8, description="steps that tell what is usual; no judgement before half of them")
    loss_z: float = Field(8.0, gt=0, description="robust z-score (median, MAD) above which a loss is a spike")
    gradient_z: float = Field(12.0, gt=0, description="the same for the logarithm of the gradient norm")
    margin: int = Field(1, ge=0, description="windows of data before the spike's that are skipped with it")
    rate_factor: float = Field(0.8, gt=0, le=1, description="learning rate from then on, as a share of what it was")


class TrainedStage(StageConfig):
    """A stage that updates weights: how long, in what portions, on how many processes.

    One step takes processes x accumulation x micro_batch sequences, or `batch_tokens` tokens.
    """

    processes: int = Field(2, ge=1)
    threads: int = Field(1, ge=1, description="of each process; another number may change the last bits of a loss")
    micro_batch: int = Field(4, ge=1, description="sequences of one forward pass on one process")
    accumulation: int = Field(1, ge=1, description="forward passes of one process before a step")
    batch_tokens: int | None = Field(
        None, ge=1, description="tokens of one step over all processes, in whole sequences; instead of `accumulation`"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of weights in use; masters stay FP32")
    fp32_operations: tuple[Fp32Operation, ...] = Field((), description="computed in FP32 whatever the precision")
    activation_checkpointing: bool = Field(False, description="compute activations again instead of keeping them")
    dropout: float = Field(0.0, ge=0, lt=1)
    rollback: Rollback = Rollback()
    parallel: Parallel | None = Field(None, description="layout on GPUs; none: ZeRO-3 over `processes` on the CPU")
    keep_checkpoints: int = Field(2, ge=1, description="older ones are deleted")
    steps: int = Field(ge=1, description="most optimizer steps")
    epochs: float = Field(4.0, gt=0, description="most passes over the data")
    checkpoint_every: int = Field(20, ge=1, description="steps between two checkpoints")
    optimizer: Optimizer

    @model_validator(mode="after")
    def _one_batch_size(self) -> "TrainedStage":
        if self.batch_tokens is not None and self.accumulation != 1:
            raise ValueError("batch_tokens says how much a step takes, so accumulation must not; leave one of them out")
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> "TrainedStage":
        if self.parallel and self.processes % self.parallel.model_ranks:
            raise ValueError(
                f"processes {self.processes} must be a multiple of tensor x sequence x pipeline "
                f"({self.parallel.model_ranks}); the rest is data parallel"
            )
        return self

    def sequences_per_step(self, length: int) -> int:
        """Sequences of `length` tokens that one step takes over all processes."""
        if self.batch_tokens is not None:
            return max(1, self.batch_tokens // length)
        replicas = self.processes // (self.parallel.model_ranks if self.parallel else 1)
        return replicas * self.accumulation * self.micro_batch
