"""FP16 with loss scaling on a real engine, one process: `python half.py JOBDIR`. Leaves result.json.

DeepSpeed lets FP16 run where the device says that it computes in it. This processor may not; torch then computes the
same numbers slowly in software, which does for a model of this size. So the device's answer alone is replaced.
"""

import json
import sys
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from tasks.training.context import Context
from tasks.training.engine import join_ranks
from tasks.training.job import Job
from tests.training.scenarios import Trainer


def track(context: Context) -> dict[str, Any]:
    """The same eight steps in FP32 and in FP16; then a step whose gradients overflow, and one after it."""
    found: dict[str, Any] = {"fp32": Trainer(context).losses(8)}
    half = Trainer(context, precision="fp16")
    found["fp16"] = [half.step(number) for number in range(12)]
    scaler = half.engine._engine.optimizer.loss_scaler
    found["computes in"] = str(next(half.engine._engine.module.parameters()).dtype)
    found["scale"] = scaler.loss_scale

    before, weights = scaler.loss_scale, half.flat()
    batch = half.batch()
    for _ in range(2):  # dynamic scaling forgives one overflow before it halves the scale
        logits, labels = half.engine.predict(batch)
        half.engine.backward(torch.nn.functional.cross_entropy(logits, labels) * 1e6)
        found["overflow"] = half.engine.step(0.01)._asdict()
    found["scale after overflow"], found["scale before"] = scaler.loss_scale, before
    found["weights moved"] = not torch.equal(weights, half.flat())
    found["after"] = half.step(12)
    found["weights moved after"] = not torch.equal(weights, half.flat())
    found["exported"] = sorted({str(weight.dtype) for weight in half.engine.gather().values()})
    return found


def main(folder: str) -> None:
    device: Any = get_accelerator()
    device.is_fp16_supported = lambda: True
    job = Job.load(folder)
    context = Context(job, job.spec, token=3, rank=0, supervisor=0)
    join_ranks(context)
    (job.folder / "result.json").write_text(json.dumps(track(context)))


if __name__ == "__main__":
    main(sys.argv[1])
