"""The one owner of the DeepSpeed engine: forward, backward, step, save, load, gather.

ZeRO stage 3 (Rajbhandari et al. 2020): parameters, gradients and optimizer state are split over the ranks, and a
layer's parameters are gathered just before they are used.
"""

import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tasks.errors import ConfigError
from tasks.training.communication import Clock, measured
from tasks.training.context import Context
from tasks.training.data import Batch
from tasks.training.launch import rendezvous
from tasks.training.losses import IGNORED, Losses, token_losses
from tasks.training.numerics import ActivationRange, SelectiveHead, compute_in_fp32, drop_out
from tasks.training.recipe import TrainedStage
from tasks.training.zero import deepspeed_config

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # a rank that waits longer for the others fails instead of hanging


class Update(NamedTuple):
    """What one step did: gradient norm before clipping, and the norm of the change over that of the weights.

    An FP16 step whose gradients overflowed is left out and its loss scale halved: `skipped`.
    """

    grad_norm: float
    update_ratio: float
    skipped: bool


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
    # On several hosts they meet at an address that the launcher names, see `tasks.training.hosts`.
    one_host = f"file://{rendezvous(context.job, context.token, context.attempt)}"
    meeting = "env://" if "MASTER_ADDR" in os.environ else one_host
    torch.distributed.init_process_group(
        "gloo",
        init_method=meeting,
        rank=context.rank,
        world_size=context.ranks,
        timeout=COLLECTIVE_TIMEOUT,
    )
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)


class Engine:
    """A model under ZeRO-3 on this rank. Every method is collective: all ranks must call it."""

    def __init__(self, model: nn.Module, config: TrainedStage, unit_of: Callable[[str], str] = lambda name: "") -> None:
        """`unit_of` names the unit that a parameter is frozen with, see `freeze`."""
        import deepspeed

        from tasks.training.parts import PartRecorder

        _check_device(config)
        torch.set_num_threads(config.threads)
        drop_out(model, config.dropout)
        compute_in_fp32(model, config.fp32_operations if config.precision != "fp32" else ())
        if config.activation_checkpointing:
            enable: Any = model
            enable.activation_checkpointing_enable({"use_reentrant": False})
        owned: dict[tuple[str, bool], list[nn.Parameter]] = {}  # by unit, and whether weights decay: matrices alone do
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                owned.setdefault((unit_of(name), parameter.ndim >= 2), []).append(parameter)
        decay = config.optimizer.weight_decay
        groups = [{"params": some, "weight_decay": decay if decays else 0.0} for (_, decays), some in owned.items()]
        self._owners = [(unit, some) for (unit, _), some in owned.items()]  # in the order of the optimizer's groups
        self.units = {unit for unit, _ in self._owners}
        self._frozen: frozenset[str] = frozenset()
        self._head = SelectiveHead(model)
        self.config = config
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=groups, config=deepspeed_config(config), dist_init_required=False
        )
        self._recorder = self._engine.checkpoint_engine = PartRecorder()
        self._engine._copy_recovery_script = lambda folder: None  # a script beside every checkpoint that nobody runs
        self.world: int = torch.distributed.get_world_size()
        self.activations = ActivationRange(self._engine.module)
        self.communication = Clock()
        measured(self.communication)
        self._engine.train()

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits (batch, length, vocab). No attention mask: position ids that restart keep documents apart."""
        return self._engine(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits

    def predict(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (supervised, vocab) and labels (supervised,): the head is computed for supervised tokens alone.

        With a large vocabulary the head is a good part of all work, and a question's logits are of no use.
        """
        wanted = batch.labels != IGNORED
        with self._head.only(wanted):
            return self.forward(batch), batch.labels[wanted]

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of this rank's share of the step's loss.

        DeepSpeed averages over ranks; the shares already sum to the loss, so the averaging is undone.
        """
        self._engine.backward(loss * self.world)

    def step(self, learning_rate: float) -> Update:
        """Clip the gradients added since the last step, and update the weights."""
        for group, (unit, _) in zip(self._engine.optimizer.param_groups, self._owners, strict=True):
            group["lr"] = 0.0 if unit in self._frozen else learning_rate
        weights = self._engine.optimizer.fp32_partitioned_groups_flat
        before = [part.detach().clone() for part in weights]
        self._engine.step()
        self._forget_frozen_steps()
        changes = sum(float((new.detach() - old).square().sum()) for new, old in zip(weights, before, strict=True))
        sizes = sum(float(old.square().sum()) for old in before)
        changes, sizes = self.sum(changes, sizes)
        skipped = bool(self._engine.optimizer.overflow)
        norm = float("inf") if skipped else float(self._engine.get_global_grad_norm() or 0.0)
        return Update(norm, (changes / sizes) ** 0.5 if sizes else 0.0, skipped and self.config.precision == "fp16")

    def freeze(self, units: Set[str]) -> None:
        """From now on these units stay as they are, to the bit; all others learn.

        A frozen weight takes no gradient, so its moments stay 0, and a rate of 0, so it does not decay either. Adam
        counts its steps anew when it is freed.
        """
        self._frozen = frozenset(units)
        for unit, parameters in self._owners:
            for parameter in parameters:
                parameter.requires_grad_(unit not in units)

    def _forget_frozen_steps(self) -> None:
        zero = self._engine.optimizer
        for number, part in enumerate(zero.fp32_partitioned_groups_flat):
            unit, _ = self._owners[zero.sub_group_to_group_id[number]]
            if unit in self._frozen and "step" in zero.optimizer.state.get(part, {}):
                zero.optimizer.state[part]["step"].zero_()

    def evaluate(self, batch: Batch, losses_of: Losses = token_losses) -> torch.Tensor:
        """Losses of tokens in nats, (batch, length), without dropout and without gradients; 0 where not supervised."""
        losses = torch.zeros(batch.labels.shape)
        self._engine.eval()
        try:
            with torch.no_grad():
                losses[batch.labels != IGNORED] = losses_of(*self.predict(batch))
        finally:
            self._engine.train()
        return losses

    def sum(self, *values: float) -> list[float]:
        """Sums over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        with self.communication.measure():
            torch.distributed.all_reduce(tensor)
        return tensor.tolist()

    def max(self, value: float) -> float:
        """The largest over all ranks."""
        tensor = torch.tensor(value, dtype=torch.float64)
        with self.communication.measure():
            torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
        return tensor.item()

    def tell_all(self, text: str) -> list[str]:
        """Every rank's text, in the order of ranks."""
        mine = torch.tensor(list(text.encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        torch.distributed.all_gather(sizes, torch.tensor([len(mine)]))
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        texts = [torch.zeros_like(padded) for _ in range(self.world)]
        torch.distributed.all_gather(texts, padded)
        return [bytes(item[: int(size)].tolist()).decode() for item, size in zip(texts, sizes, strict=True)]

    def snapshot(self, folder: Path) -> dict[str, Any]:
        """This rank's part of a checkpoint, copied: file name → state. The folder is made; nothing is written yet."""
        with self._all_free():
            self._engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)
        return self._recorder.take()

    def load(self, folder: Path) -> None:
        """Weights and optimizer state of a checkpoint saved on as many ranks."""
        with self._all_free():
            self._engine.load_checkpoint(str(folder.parent), tag=folder.name)

    @contextmanager
    def _all_free(self) -> Iterator[None]:
        """Checkpoints hold every unit in the same way, frozen for a while or not."""
        frozen = self._frozen
        self.freeze(frozenset())
        try:
            yield
        finally:
            self.freeze(frozen)

    def load_universal(self, folder: Path, scratch: Path) -> None:
        """Weights and optimizer state of a checkpoint saved on another number of ranks (universal checkpoint).

        The checkpoint is converted under `scratch`, which is removed again.
        """
        import shutil

        from deepspeed.checkpoint import ds_to_universal

        if torch.distributed.get_rank() == 0:
            shutil.rmtree(scratch, ignore_errors=True)
            ds_to_universal.main(
                Namespace(
                    input_folder=str(folder),
                    output_folder=str(scratch),
                    num_extract_workers=1,
                    num_merge_workers=1,
                    keep_temp_folder=False,
                    strict=True,
                    inject_missing_state=False,
                )
            )
        torch.distributed.barrier()
        decays = [group["weight_decay"] for group in self._engine.optimizer.param_groups]
        self._engine._config.load_universal_checkpoint = True
        try:
            self._engine.load_checkpoint(str(scratch.parent), tag=scratch.name)
        finally:
            self._engine._config.load_universal_checkpoint = False
        for group, decay in zip(self._engine.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay  # the conversion gives every group the first one's
        for moments in self._engine.optimizer.optimizer.state.values():
            moments["step"] = moments["step"].clone()  # one tensor for all groups, which each would count on
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            shutil.rmtree(scratch)
            (scratch.parent / "latest_universal").unlink(missing_ok=True)  # a marker that the converter leaves

    def gather(self) -> dict[str, torch.Tensor]:
        """Full FP32 weights by name, on every rank; tied weights once."""
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param

        state = {}
        for name, parameter in self._engine.module.named_parameters():
            if self.config.precision != "fp32" and parameter.requires_grad:
                state[name] = safe_get_full_fp32_param(parameter).detach().cpu().clone()
                continue
            with deepspeed.zero.GatheredParameters(parameter):
                state[name] = parameter.detach().float().cpu().clone()
        return state


def _check_device(config: TrainedStage) -> None:
    """Raise ConfigError when the device cannot compute as the recipe asks for."""
    from deepspeed.accelerator import get_accelerator

    if config.parallel is not None:
        raise ConfigError(
            f"stage '{config.name}' is laid out for {config.processes} GPUs (`parallel`); this engine runs ZeRO-3 on "
            "CPU processes so far. `python -m tasks plan` checks the layout and its memory without running it"
        )

    device = get_accelerator()
    able = {"fp32": True, "bf16": device.is_bf16_supported(), "fp16": bool(device.is_fp16_supported())}
    if not able[config.precision]:
        others = ", ".join(name for name, yes in able.items() if yes)
        raise ConfigError(
            f"precision {config.precision} does not run on this device ({device.device_name()}); "
            f"set `precision` of stage '{config.name}' to one of: {others}"
        )
