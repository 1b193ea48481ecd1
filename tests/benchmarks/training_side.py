"""This project's half of the training benchmark, and a bare DeepSpeed loop: `python training_side.py own|bare WORK`.

One process is one rank, as `tasks.training.worker` is; RANK and WORLD_SIZE say which.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import torch
from torch.nn import functional

from tasks.corpus.storage import to_json
from tasks.tokens.packing import best_fit
from tasks.training import loop
from tasks.training.context import Context
from tasks.training.data import Loader, PackedConversations
from tasks.training.engine import Engine, deepspeed_config, join_ranks
from tasks.training.job import Job, Lease
from tasks.training.model import load_model
from tasks.training.numerics import ActivationRange
from tasks.training.plan import StageSpec
from tasks.training.recipe import PretrainStage
from tests.benchmarks.pace import Pace, Work

for name, alone in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}.items():
    os.environ.setdefault(name, alone)
os.environ |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class InOrder:
    """Sequences as they come, again and again: both sides of a race see the same ones."""

    def __init__(self, size: int) -> None:
        self.size = size

    def at(self, position: int) -> int:
        return position % self.size


class Paced(Context):
    """Reports each step to the driver too."""

    pace: Pace
    losses: list[float]

    def report(self, **record: Any) -> dict[str, Any]:
        line = super().report(**record)
        if self.first:
            self.losses.append(record["loss"])
            self.pace.step(supervised=record["supervised"], tokens=record["tokens"], slots=record["slots"])
        return line


def stage(work: Work) -> PretrainStage:
    rate = max(work.rates, default=1e-3)
    return PretrainStage.model_validate(
        {
            "name": "bench",
            "kind": "pretrain",
            "processes": work.ranks,
            "threads": work.threads,
            "micro_batch": work.micro_batch,
            "accumulation": work.accumulation,
            "steps": work.steps,
            "epochs": 1e6,
            "checkpoint_every": work.checkpoint_every,
            "optimizer": {"learning_rate": rate, "warmup_steps": 0, "schedule": "constant"},
        }
    )


def source(work: Work) -> PackedConversations:
    """Packed as the stage *sft* packs, or one conversation a sequence."""
    items = [(np.array(ids), np.array(mask, bool)) for ids, mask in work.items()]
    bins = best_fit([len(ids) for ids, _ in items], work.length) if work.packed else [[i] for i in range(len(items))]
    return PackedConversations([[items[i] for i in members] for members in bins], work.length)


def context(folder: Path, config: PretrainStage, work: Work) -> Paced:
    """A job of its own, held by whoever started the ranks."""
    spec = StageSpec(
        recipe="bench", stage="bench", kind="pretrain", key="bench", job=str(folder), artifact=str(folder / "artifact"),
        store=str(folder), config=config, parents={}, data={},
    )  # fmt: skip
    job, parent = Job(folder), psutil.Process(os.getppid())
    if RANK == 0:
        (folder / "spec.json").write_bytes(to_json(spec.model_dump(mode="json")))
        lease = Lease(token=1, host="here", pid=parent.pid, started=parent.create_time())
        (folder / "lease.json").write_bytes(to_json(lease.model_dump()))
    made = Paced(job, spec, token=1, rank=RANK, supervisor=parent.pid, ranks=WORLD)
    object.__setattr__(made, "losses", [])
    object.__setattr__(made, "pace", Pace(work))
    return made


def own(work: Work, folder: Path) -> None:
    """The stages' own loop: spikes judged, activations and updates measured, every step reported, checkpoints."""
    config = stage(work)
    ours = context(folder, config, work)
    join_ranks(ours)
    data = source(work)
    loader = Loader(data, config, rank=RANK, world=WORLD, pad=0, order=InOrder(len(data)))
    if not work.detectors:
        without_detectors()
    engine = Engine(load_model(work.model), config)
    if work.rates:
        loop.learning_rate = lambda step, steps, optimizer: work.rate(step)  # both sides follow one list
    loop.train(ours, engine, loader)
    if work.losses and RANK == 0:
        Path(work.losses).write_bytes(orjson.dumps(ours.losses))


def without_detectors() -> None:
    """The same loop blind: no spike is judged, no activation looked at, no symptom looked for."""
    loop.SpikeWatch.judge = lambda self, step, loss, norm: None  # type: ignore[method-assign,assignment]
    loop.symptoms = lambda lines, config: []  # type: ignore[assignment]
    ActivationRange._see = lambda self, module, inputs, output: None  # type: ignore[method-assign]


def bare(work: Work, folder: Path) -> None:
    """What DeepSpeed's tutorial does: forward, loss, backward, step, under the same configuration."""
    import deepspeed

    config = stage(work)
    join_ranks(context(folder, config, work))
    torch.set_num_threads(work.threads)
    data = source(work)
    loader = Loader(data, config, rank=RANK, world=WORLD, pad=0, order=InOrder(len(data)))
    model = load_model(work.model)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=deepspeed_config(config), dist_init_required=False
    )
    engine.train()
    pace = Pace(work)
    for step in range(work.steps):
        batches = loader.step(step)
        for batch in batches:
            logits = engine(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
            engine.backward(functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()) / len(batches))
        engine.step()
        if RANK == 0:
            pace.step(
                supervised=WORLD * sum(b.supervised for b in batches),
                tokens=WORLD * sum(b.tokens for b in batches),
                slots=WORLD * sum(b.input_ids.numel() for b in batches),
            )


if __name__ == "__main__":
    torch.manual_seed(0)
    {"own": own, "bare": bare}[sys.argv[1]](Work.read(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)
