"""The parts of a checkpoint: what DeepSpeed hands over to be saved, kept as copies until someone writes them."""

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

SAFE = [DynamicLossScaler, LossScaler, ZeroStageEnum, OrderedDict, torch.Size]  # all that a part holds besides tensors


class PartRecorder(CheckpointEngine):
    """DeepSpeed's checkpoint engine of this project: `save` copies, so that training may go on while others write."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "athanor"
        self._parts: dict[str, Any] = {}

    def create(self, info: CheckpointCommitInfo) -> None:
        self._parts = {}

    def save(self, state_dict: Any, path: str) -> None:
        self._parts[Path(path).name] = snapshot(state_dict)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True

    def preserves_storage_sharing(self) -> bool:
        return False

    def load(self, path: str, map_location: Any = None) -> Any:
        """A part that was written with `torch.save`; anything but tensors, plain values and SAFE is refused."""
        with torch.serialization.safe_globals(SAFE):
            return torch.load(path, map_location=map_location, weights_only=True)

    def take(self) -> dict[str, Any]:
        """File name → copied state, of the checkpoint saved last; handed out once."""
        parts, self._parts = self._parts, {}
        return parts


def snapshot(value: Any) -> Any:
    """A copy that later steps do not change: tensors in main memory, containers rebuilt."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, dict):
        return type(value)((key, snapshot(item)) for key, item in value.items())
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(snapshot(item) for item in value)
    return copy.deepcopy(value)
