"""How a stage's processes share a large machine. Light: nothing here imports torch.

What DeepSpeed 0.19.8 offers together: ZeRO-3 over data-parallel ranks, AutoTP inside a node, Ulysses sequence
parallelism; a pipeline with ZeRO-1 alone (its own check refuses ZeRO-2 and 3).
"""

from typing import Literal

from pydantic import Field, model_validator

from tasks.settings import StrictModel


class Parallel(StrictModel):
    """GPUs of a stage, and what they do together. What is left over by the others is data parallel."""

    gpus_per_node: int = Field(8, ge=1)
    gpu_memory_gb: float = Field(80.0, gt=0, description="of one GPU, to hold the estimate against")
    zero: Literal[1, 3] = Field(3, description="ZeRO stage; 1 for a pipeline alone")
    tensor: int = Field(1, ge=1, description="GPUs that split every matrix (AutoTP)")
    sequence: int = Field(1, ge=1, description="GPUs that split every sequence (Ulysses, Jacobs et al. 2023)")
    pipeline: int = Field(1, ge=1, description="groups of layers one after another")
    overlap: bool = Field(True, description="communicate while computing")
    offload: Literal["none", "optimizer", "all"] = Field("none", description="what lies in the host's memory")
    kernels: Literal["torch", "liger"] = Field("torch", description="liger: fused norm, rotary, SwiGLU, cross-entropy")

    @model_validator(mode="after")
    def _offered(self) -> "Parallel":
        if self.pipeline > 1 and self.zero != 1:
            raise ValueError("a pipeline goes with `zero: 1` alone: DeepSpeed refuses ZeRO-3 there; or leave it out")
        if self.tensor > self.gpus_per_node:
            raise ValueError(f"tensor {self.tensor} spans nodes of {self.gpus_per_node} GPUs; keep it inside one")
        return self

    @property
    def model_ranks(self) -> int:
        """GPUs that hold one replica's computation."""
        return self.tensor * self.sequence * self.pipeline
