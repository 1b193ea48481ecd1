"""The one owner of the DeepSpeed engine: forward, backward, step, save, load, gather.

ZeRO stage 3 (Rajbhandari et al. 2020): parameters, gradients and optimizer state are split over the ranks, and a
layer's parameters are gathered just before they are used.
"""

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.training.context import Context
from tasks.training.data import Batch
from tasks.training.recipe import TrainedStage

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # a rank that waits longer for the others fails instead of hanging
GATHERED_BELOW = 10_000  # parameters with fewer elements (norms) are not split


def join_ranks(context: Context) -> None:
    """Join this rank to the others (gloo, through a file in the job's folder: no port that could be taken).

    DeepSpeed's shared-memory operator is switched off. It needs a C++ compiler at first use, and on two cores its
    waiting ranks took the time from the working ones; the sums are the same to the bit.
    """
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if context.first:
        print("DeepSpeed's C++ shared-memory operator is off (no compiler is needed); gloo does all communication")
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{context.job.folder.absolute()}/rendezvous-{context.token}",
        rank=context.rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=COLLECTIVE_TIMEOUT,
    )
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)


def deepspeed_config(config: TrainedStage) -> dict[str, Any]:
    """DeepSpeed's configuration of a stage, in FP32."""
    optimizer = config.optimizer
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": config.accumulation,
        "gradient_clipping": optimizer.clip_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimizer.learning_rate,
                "betas": [optimizer.beta1, optimizer.beta2],
                "weight_decay": optimizer.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": GATHERED_BELOW},
        "steps_per_print": 2**31,
    }


class Engine:
    """A model under ZeRO-3 on this rank. Every method is collective: all ranks must call it."""

    def __init__(self, model: nn.Module, config: TrainedStage) -> None:
        import deepspeed

        torch.set_num_threads(config.threads)
        matrices = [p for p in model.parameters() if p.requires_grad and p.ndim >= 2]
        others = [p for p in model.parameters() if p.requires_grad and p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": config.optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self.config = config
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=groups, config=deepspeed_config(config), dist_init_required=False
        )
        self.world: int = torch.distributed.get_world_size()
        self._engine.train()

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits (batch, length, vocab). No attention mask: position ids that restart keep documents apart."""
        return self._engine(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of this rank's share of the step's loss.

        DeepSpeed averages over ranks and micro-batches; the shares already sum to the loss, so the averaging is undone.
        """
        self._engine.backward(loss * (self.world * self.config.accumulation))

    def step(self, learning_rate: float) -> float:
        """Finish a micro-batch; after the last of a step, clip, update and return the gradient norm before clipping."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return float(self._engine.get_global_grad_norm() or 0.0)

    def sum(self, *values: float) -> list[float]:
        """Sums over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(tensor)
        return tensor.tolist()

    def save(self, folder: Path, tag: str) -> None:
        """Write this rank's part of a checkpoint to `folder`/`tag`; returns when every rank has."""
        self._engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
        torch.distributed.barrier()

    def load(self, folder: Path, tag: str) -> None:
        """Weights and optimizer state of a checkpoint saved on as many ranks."""
        self._engine.load_checkpoint(str(folder), tag=tag)

    def gather(self) -> dict[str, torch.Tensor]:
        """Full weights by name, on every rank; tied weights once."""
        import deepspeed

        state = {}
        for name, parameter in self._engine.module.named_parameters():
            with deepspeed.zero.GatheredParameters(parameter):
                state[name] = parameter.detach().cpu().clone()
        return state
