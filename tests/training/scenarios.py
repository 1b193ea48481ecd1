"""Scenarios on a real engine, run by two gloo processes at once: `python scenarios.py JOBDIR`. One launch for all of
them, since joining takes longer than most. Each leaves a JSON result; `test_engine.py` judges them."""

import json
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.tokens.packing import positions_of
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training import checkpoint
from tasks.training.adapters import ADAPTER, export_adapted, merged_from, with_adapters
from tasks.training.checkpoint import Checkpoints
from tasks.training.context import Context
from tasks.training.data import Batch, Loader, Sequence, collate
from tasks.training.engine import Engine, join_ranks
from tasks.training.job import Job
from tasks.training.losses import IGNORED, causal_loss
from tasks.training.model import export_model, load_model, new_model
from tasks.training.recipe import ModelShape, Optimizer, PretrainStage
from tasks.training.tuning import Lora, Unfreezing
from tasks.training.unfreezing import ProgressiveUnfreezing, unit_of

VOCAB, LENGTH, END, PAD = 60, 32, 0, 1
SHAPE = ModelShape(hidden_size=32, intermediate_size=64, layers=3, heads=4, key_value_heads=2, context=LENGTH)


class Tokenizer:
    eos_token_id, pad_token_id = END, PAD

    def __len__(self) -> int:
        return VOCAB


class Ragged:
    """64 sequences of very different lengths, of documents that count upwards: something that can be learnt."""

    length = LENGTH

    def __init__(self) -> None:
        draw = np.random.default_rng(4)
        self.sizes = draw.integers(2, LENGTH + 1, size=64)
        self.begins = draw.integers(2, VOCAB // 2, size=64)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Sequence:
        ids = np.append(self.begins[index] + np.arange(self.sizes[index] - 1) % 25, END)
        positions = positions_of(ids, END)
        return Sequence(ids, positions, positions > 0)

    def units(self, index: int) -> np.ndarray:
        return np.full(self.sizes[index], index)

    def name(self, unit: int) -> tuple[str, str]:
        return f"document {unit}", "ragged"


def stage(**changes: Any) -> PretrainStage:
    values: dict[str, Any] = {"micro_batch": 4, "batch_tokens": 16 * LENGTH, "steps": 50, "checkpoint_every": 1}
    return PretrainStage(name="p", kind="pretrain", optimizer=Optimizer(learning_rate=0.01), **(values | changes))


class Trainer:
    """An engine and a loader, and steps on demand."""

    def __init__(self, context: Context, model: Any = None, **changes: Any) -> None:
        self.config = stage(**changes)
        torch.manual_seed(1)
        self.engine = Engine(model or new_model(SHAPE, Tokenizer(), seed=3), self.config)
        self.loader = Loader(Ragged(), self.config, rank=context.rank, world=context.ranks, pad=PAD)

    def step(self, number: int, rate: float = 0.01) -> dict[str, float]:
        torch.manual_seed(number)
        batches = self.loader.step(number)
        (supervised,) = self.engine.sum(sum(batch.supervised for batch in batches))
        share = 0.0
        for batch in batches:
            loss = causal_loss(*self.engine.predict(batch), int(supervised))
            self.engine.backward(loss)
            share += loss.item()
        update = self.engine.step(rate)
        (total,) = self.engine.sum(share)
        return {
            "loss": total,
            "norm": update.grad_norm,
            "ratio": update.update_ratio,
            "activation": self.engine.max(self.engine.activations.take()),
            "skipped": float(update.skipped),
        }

    def losses(self, count: int = 4) -> list[dict[str, float]]:
        return [self.step(number) for number in range(count)]

    def flat(self) -> torch.Tensor:
        return torch.cat([weight.flatten() for weight in self.engine.gather().values()])

    def batch(self) -> Batch:
        return self.loader.batch(list(range(8)))


def accumulation(context: Context) -> Any:
    """The same 16 (then 5, then 1) sequences a step in micro-batches of 8, 4, 1 and 3."""
    found: dict[str, Any] = {}
    for sequences in (16, 5, 1):
        for size in (8, 4, 1, 3):
            trainer = Trainer(context, micro_batch=size, batch_tokens=sequences * LENGTH)
            found[f"{sequences} by {size}"] = trainer.losses(3)
    return found


def precision(context: Context) -> Any:
    found: dict[str, Any] = {"fp32": Trainer(context).losses(8), "bf16": Trainer(context, precision="bf16").losses(8)}
    reference = Trainer(context)
    exact = reference.engine.evaluate(reference.batch())
    for name, operations in (("bf16", ()), ("bf16 with fp32", ("attention", "mlp", "logits"))):
        lower = Trainer(context, precision="bf16", fp32_operations=operations)
        error = float((lower.engine.evaluate(lower.batch()) - exact).abs().max())
        found[f"error of {name}"] = lower.engine.max(error)
    half = Trainer(context, precision="bf16")
    half.losses(2)
    found["exported"] = sorted({str(weight.dtype) for weight in half.engine.gather().values()})
    found["exported beyond bf16"] = bool((half.flat() != half.flat().bfloat16().float()).any())
    try:
        found["fp16"] = Trainer(context, precision="fp16").losses(8)
    except AthanorError as error:
        found["fp16 refused"] = str(error)
    return found


def switches(context: Context) -> Any:
    plain, again = Trainer(context), Trainer(context, activation_checkpointing=True)
    found: dict[str, Any] = {"plain": plain.losses(), "checkpointed": again.losses()}
    dropped = Trainer(context, dropout=0.3)
    found["first loss with dropout"] = dropped.step(0)["loss"]
    fresh = Trainer(context)
    trained, other = (t.engine.evaluate(t.batch()) for t in (Trainer(context, dropout=0.3), fresh))
    found["dropout changes evaluation"] = not torch.equal(trained, other)
    logits, (chosen, labels) = fresh.engine.forward(fresh.batch()), fresh.engine.predict(fresh.batch())
    supervised = fresh.batch().labels != IGNORED
    found["shapes"] = [list(logits.shape), list(chosen.shape), int(supervised.sum())]
    found["chosen logits differ by"] = float((logits[supervised] - chosen).abs().max().detach())
    found["labels are those"] = torch.equal(fresh.batch().labels[supervised], labels)
    before = fresh.flat()
    step = fresh.step(0)
    found["ratio"] = step["ratio"]
    found["ratio by hand"] = float((fresh.flat() - before).norm() / before.norm())
    decayed = Trainer(context, dropout=0.3, activation_checkpointing=True).losses(2)
    found["dropout, checkpointed"], found["dropout"] = decayed, Trainer(context, dropout=0.3).losses(2)
    return found


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "marker missing": lambda folder: (folder / "complete.json").unlink(),
    "marker cut": lambda folder: (folder / "complete.json").write_bytes((folder / "complete.json").read_bytes()[:40]),
    "marker empty": lambda folder: (folder / "complete.json").write_bytes(b""),
    "rank file missing": lambda folder: part(folder, 1).unlink(),
    "rank file cut": lambda folder: part(folder, 1).write_bytes(part(folder, 1).read_bytes()[:2000]),
    "bit flipped": lambda folder: flip(part(folder, 1)),
    "bit flipped, rank 0": lambda folder: flip(part(folder, 0)),
}


def part(folder: Path, rank: int) -> Path:
    return next(folder.glob(f"*zero_pp_rank_{rank}_*optim_states.pt"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def damages(context: Context) -> Any:
    """Three checkpoints; the newest is damaged in each way, then all of them are."""
    trainer = Trainer(context)
    saved = Checkpoints(context, trainer.engine, keep=3)
    weights = {}
    for number in range(3):
        trainer.step(number)
        saved.save(number + 1, {"note": number + 1})
        weights[number + 1] = trainer.flat()
    saved.wait()
    torch.distributed.barrier()
    folder, kept = saved.folder, saved.folder.with_name("kept")
    if context.first:
        shutil.copytree(folder, kept)
    found = {}
    for name, damage in DAMAGES.items():
        torch.distributed.barrier()
        if context.first:
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
            damage(folder / "step-00000003")
        torch.distributed.barrier()
        again = Checkpoints(context, trainer.engine, keep=3)
        step, states = again.resume()
        found[name] = [step, states, again.notes, torch.equal(trainer.flat(), weights[2])]
    torch.distributed.barrier()
    if context.first:
        for path in folder.glob("step-*"):
            (path / "complete.json").unlink()
        (context.job.folder / "progress.jsonl").write_bytes(b'{"step":1}\n')
    torch.distributed.barrier()
    none = Checkpoints(context, trainer.engine, keep=3)
    found["none left"] = [*none.resume(), none.notes, False]
    return found


def flight(context: Context) -> Any:
    """A disk that takes nothing until it is told to: what training sees of it."""
    real, gate = checkpoint._write, threading.Event()

    def waiting(path: Path, state: Any) -> dict[str, Any]:
        gate.wait()
        return real(path, state)

    trainer = Trainer(context)
    shutil.rmtree(context.job.folder / "checkpoints", ignore_errors=True)
    saved = Checkpoints(context, trainer.engine, keep=2)
    checkpoint._write = waiting
    try:
        trainer.step(0)
        saved.save(1)
        weights = trainer.flat()
        losses = [trainer.step(number)["loss"] for number in range(1, 4)]
        there = checkpoint.complete_steps(saved.folder)
        threading.Timer(0.5, gate.set).start()
        saved.save(4)
        waited, then = gate.is_set(), checkpoint.complete_steps(saved.folder)
        saved.wait()
    finally:
        checkpoint._write = real
        gate.set()
    torch.distributed.barrier()
    saved.load(1)
    return {
        "losses": losses,
        "there while stepping": there,
        "waited": waited,
        "there when the second begins": then,
        "steps": checkpoint.complete_steps(saved.folder),
        "is as when saved": torch.equal(trainer.flat(), weights),
    }


def full(context: Context) -> Any:
    """A disk on which rank 0 can write no file beyond 2,000 bytes."""
    trainer = Trainer(context)
    saved = Checkpoints(context, trainer.engine)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = ""
    saved.save(9)
    saved.wait()
    if context.first:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        saved.save(10)
        saved.wait()
    except AthanorError as error:
        said = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    torch.distributed.barrier()
    return {"said": said, "steps": checkpoint.complete_steps(saved.folder)}


def unfreezing(context: Context) -> Any:
    """Ten steps in which units are freed one after another: which moved in each; and again, resumed after five."""

    def fresh() -> Trainer:
        trainer = Trainer(context)
        trainer.engine = Engine(new_model(SHAPE, Tokenizer(), seed=3), trainer.config, unit_of)
        return trainer

    def go(trainer: Trainer, numbers: range) -> list[list[str]]:
        moved = []
        for number in numbers:
            before = trainer.engine.gather()
            companion.before_step(trainer.engine, number, 10)
            trainer.step(number)
            after = trainer.engine.gather()
            same = {n for n in after if torch.equal(after[n].view(torch.uint8), before[n].view(torch.uint8))}
            moved.append(sorted({unit_of(name) for name in after if name not in same}))
        return moved

    companion = ProgressiveUnfreezing(Unfreezing(every=2, share=0.3, last=2))
    trainer, resumed = fresh(), fresh()
    saved = Checkpoints(context, trainer.engine, keep=2)
    if context.first:
        shutil.rmtree(saved.folder, ignore_errors=True)
    torch.distributed.barrier()
    moved = go(trainer, range(5))
    saved.save(5)
    moved += go(trainer, range(5, 10))
    saved.wait()
    torch.distributed.barrier()
    Checkpoints(context, resumed.engine, keep=2).load(5)
    again = go(resumed, range(5, 10))
    return {"moved": moved, "again": again, "equal": torch.equal(trainer.flat(), resumed.flat())}


def masked(context: Context) -> Any:
    """A step whose micro-batches have nothing to learn."""
    trainer = Trainer(context)
    before = trainer.flat()
    batch = collate([], LENGTH, PAD)
    loss = causal_loss(*trainer.engine.predict(batch), batch.supervised)
    trainer.engine.backward(loss)
    update = trainer.engine.step(0.0)
    return {"loss": loss.item(), "norm": update.grad_norm, "moved": not torch.equal(before, trainer.flat())}


def universal(context: Context) -> Any:
    """A checkpoint through conversion, as it happens when the number of ranks changes, but loaded by as many."""
    trainer, other = Trainer(context), Trainer(context)
    before = set(Checkpoints(context, trainer.engine).folder.glob("*"))
    for number in range(3):
        trainer.step(number)
    saved = Checkpoints(context, trainer.engine)
    saved.save(3)
    saved.wait()
    torch.distributed.barrier()
    other.engine.load_universal(saved.folder / "step-00000003", saved.folder / ".universal")
    equal = torch.equal(trainer.flat(), other.flat())
    groups = [group["weight_decay"] for group in other.engine._engine.optimizer.param_groups]
    left = [path.name for path in {*saved.folder.iterdir()} - before if path.name != "step-00000003"]
    return {
        "equal": equal,
        "decays": groups,
        "next": [[t.step(n) for n in (3, 4, 5)] for t in (trainer, other)],
        "left": left,
    }


def exports(context: Context) -> Any:
    """A step on two ranks, the weights gathered, exported, read back: which are not what they should be."""
    tokenizer = train_tokenizer(["the quick brown fox jumps over the lazy dog " * 20], 280, LENGTH)
    found: dict[str, Any] = {}
    for name in ("tied", "untied", "tied resized", "untied resized", "frozen", "adapters"):
        model: Any = new_model(SHAPE.model_copy(update={"tie_embeddings": "untied" not in name}), tokenizer, seed=3)
        torch.manual_seed(5)
        if "resized" in name:
            model.resize_token_embeddings(len(tokenizer) + 24)
        folder, parent = context.job.folder / f"export {name}", context.job.folder / f"parent {name}"
        if context.first:
            export_model(
                {n: weight.detach().clone() for n, weight in model.named_parameters()}, model, tokenizer, parent
            )
        torch.distributed.barrier()
        if name == "frozen":
            for path, weight in model.named_parameters():
                weight.requires_grad_("mlp" not in path)
        trained = with_adapters(model, Lora(rank=2), seed=0) if name == "adapters" else model
        trainer = Trainer(context, trained)
        trainer.losses(2)
        state = trainer.engine.gather()
        if context.first and name == "adapters":
            export_adapted(state, parent, "parent", Lora(rank=2), tokenizer, folder)
            state = merged_from(parent, folder / ADAPTER).state_dict()
        elif context.first:
            export_model(state, load_model(parent), tokenizer, folder)
        if context.first:
            again, before = load_model(folder).state_dict(), load_model(parent).state_dict()
            found[name] = {
                "wrong": [n for n in state if not torch.equal(again[n].view(torch.uint8), state[n].view(torch.uint8))],
                "unchanged": sorted(n for n in again if torch.equal(again[n], before[n])),
                "rows": [again[f"{n}.weight"].shape[0] for n in ("model.embed_tokens", "lm_head")],
                "vocabulary": len(tokenizer),
            }
        torch.distributed.barrier()
    return found


SCENARIOS = (accumulation, precision, switches, damages, flight, full, universal, unfreezing, masked, exports)


def main(folder: str, rank: int, supervisor: int) -> None:
    job = Job.load(folder)
    context = Context(job, job.spec, token=3, rank=rank, supervisor=supervisor, ranks=2)
    join_ranks(context)
    results = {run.__name__: run(context) for run in SCENARIOS}
    (job.folder / f"results-{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
