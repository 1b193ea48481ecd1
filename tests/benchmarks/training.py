"""Training beside TRL's SFTTrainer and a bare DeepSpeed loop: same model, conversations, precision, attention, cores.

`python -m tests.benchmarks training` runs all races, `python -m tests.benchmarks.training packed bare` some of them.
Sides of a race take turns, round by round; a figure is the median over its rounds. Figures are kept in
`.athanor/bench/training`, and `tests/benchmarks/TRAINING.md` is written from all that are there.
"""

import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer

from tests.benchmarks import training_trl
from tests.benchmarks.corpus import REPOSITORY, SHARED, WORK
from tests.benchmarks.pace import MARK, Work

PART = "training"  # of `python -m tests.benchmarks`
PLACE = WORK / PART
SETS = ("glaive_toolcall_en", "oasst_sft_zh", "sharegpt_zh_600")
VOCABULARY, LENGTH, MOST = 8192, 512, 480
HERE = Path(__file__).parent
DISTRIBUTED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True)
class Side:
    """Who runs, on what."""

    who: str  # own, bare, trl
    work: Work


class Running:
    """The processes of one side; the first rank talks."""

    def __init__(self, side: Side, folder: Path) -> None:
        self.log = (folder / "log.txt").open("wb")
        (folder / "work.json").write_bytes(orjson.dumps(asdict(side.work)))
        script = HERE / ("training_trl.py" if side.who == "trl" else "training_side.py")
        arguments = [] if side.who == "trl" else [side.who]
        paths = [str(REPOSITORY), *([str(training_trl.install())] if side.who == "trl" else [])]
        # Making the model sets LOCAL_RANK in this process; TRL would take itself for one of several.
        inherited = {name: value for name, value in os.environ.items() if name not in DISTRIBUTED}
        environment = inherited | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        environment |= {"OMP_NUM_THREADS": str(side.work.threads), "PYTHONWARNINGS": "ignore"}
        many = {"WORLD_SIZE": str(side.work.ranks), "LOCAL_SIZE": str(side.work.ranks)} if side.who != "trl" else {}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(script), *arguments, str(folder / "work.json"), str(folder)],
                env=environment | (many | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if many else {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else self.log,
                stderr=self.log,
            )
            for rank in range(side.work.ranks)
        ]

    def result(self) -> dict[str, float]:
        """What the round that runs came to."""
        assert self.ranks[0].stdout is not None
        for line in self.ranks[0].stdout:
            if line.startswith(MARK.encode()):
                return orjson.loads(line[len(MARK) :])
            self.log.write(line)
        self.log.flush()
        raise SystemExit(f"a side of the race ended early:\n{Path(self.log.name).read_text()[-3000:]}")

    def go(self) -> None:
        stdin = self.ranks[0].stdin
        assert stdin is not None
        stdin.write(b"go\n")
        stdin.flush()

    def end(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.log.close()


def race(sides: dict[str, Side]) -> dict[str, list[dict[str, float]]]:
    """Rounds of each side, in turns; the warm-up is left out."""
    scratch = PLACE / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    running: dict[str, Running] = {}
    try:
        for name, side in sides.items():
            (scratch / name).mkdir(parents=True)
            running[name] = Running(side, scratch / name)
        for one in running.values():
            one.result()
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for number in range(1, min(side.work.rounds for side in sides.values())):
            names = list(sides) if number % 2 else list(sides)[::-1]
            for name in names:
                running[name].go()
                found[name].append(running[name].result())
        return found
    finally:
        for one in running.values():
            one.end()
        shutil.rmtree(scratch, ignore_errors=True)


def prepared() -> Work:
    """A model of 7 M parameters and real conversations, tokenised once."""
    from tasks.tokens.chat import UnfitRecord, encode_conversation
    from tasks.tokens.tokenizer import train_tokenizer
    from tasks.training.importing import import_instructions
    from tasks.training.instructions import read_instructions
    from tasks.training.model import export_model, new_model
    from tasks.training.recipe import ModelShape, SftStage

    model, where = PLACE / "model", PLACE / "conversations.json"
    if not where.exists():
        for name in SETS:
            import_instructions(str(SHARED / "sft" / f"{name}.jsonl.gz"), str(PLACE / "records"))
        config = SftStage.model_validate({"name": "s", "kind": "sft", "steps": 1, "optimizer": {"learning_rate": 1e-3}})
        records = read_instructions(str(PLACE / "records"), config).splits["train"][:MOST]
        texts = ["\n".join(message["content"] for message in record.messages) for record in records]
        tokenizer = train_tokenizer(texts, VOCABULARY, LENGTH)
        shape = ModelShape(hidden_size=256, intermediate_size=704, layers=6, heads=8, key_value_heads=4, context=LENGTH)
        network = new_model(shape, tokenizer, seed=0)
        export_model({n: w.detach() for n, w in network.named_parameters()}, network, tokenizer, model)
        kept = []
        for record in records:
            try:
                ids, mask = encode_conversation(tokenizer, record.messages)
            except UnfitRecord:
                continue
            if mask[1:LENGTH].any():
                kept.append((ids[:LENGTH].tolist(), mask[:LENGTH].tolist()))
        where.write_bytes(orjson.dumps(kept))
    return Work(str(model), str(where), LENGTH)


def unpacked(work: Work) -> dict[str, Side]:
    return {"own": Side("own", work), "TRL": Side("trl", work)}


def packed(work: Work) -> dict[str, Side]:
    full = replace(work, packed=True, micro_batch=2, round=3)
    return {"own": Side("own", full), "TRL": Side("trl", full), "TRL, unpacked": Side("trl", replace(work, round=3))}


def bare(work: Work) -> dict[str, Side]:
    every = replace(work, packed=True, everything=True, micro_batch=2)
    return {"own": Side("own", every), "bare": Side("bare", every)}


def watched(work: Work) -> dict[str, Side]:
    """Twenty steps a round: as many as lie between two checkpoints by default."""
    every = replace(work, packed=True, everything=True, micro_batch=1, round=20, rounds=3)
    plain = replace(every, detectors=False)
    return {"with": Side("own", replace(every, checkpoint_every=20)), "without": Side("own", plain)}


def ranks(work: Work) -> dict[str, Side]:
    every = replace(work, packed=True, everything=True, micro_batch=2, accumulation=2, round=3)
    two = replace(every, ranks=2, threads=1, accumulation=1)
    return {
        "two ranks, a thread each": Side("own", two),
        "one rank, two threads": Side("own", every),
        "one rank, one thread": Side("own", replace(every, threads=1)),
    }


RACES = {"unpacked": unpacked, "packed": packed, "bare": bare, "watched": watched, "ranks": ranks}


def rates(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Medians: supervised tokens, tokens and slots per second; and the spread of the former over the rounds."""
    found = {
        kind: statistics.median(r[kind] / r["seconds"] for r in rounds) for kind in ("supervised", "tokens", "slots")
    }
    each = [r["supervised"] / r["seconds"] for r in rounds]
    return found | {"spread": (max(each) - min(each)) / statistics.median(each), "rounds": len(rounds)}


def supervised_per_slot(work: Work, micro_batch: int = 8) -> dict[str, float]:
    """Supervised tokens of a computed slot, by how conversations are laid into batches of `micro_batch` rows."""
    from tasks.tokens.packing import best_fit
    from tests.oracles.packing import first_fit

    items = work.items()
    lengths = [len(ids) for ids, _ in items]
    supervised = sum(sum(mask[1:]) for _, mask in items)

    def padded(order: list[int]) -> int:
        batches = [order[i : i + micro_batch] for i in range(0, len(order), micro_batch)]
        return sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)

    def filled(bins: list[list[int]]) -> int:
        sizes = [sum(lengths[i] for i in some) for some in bins]
        return sum(
            len(sizes[i : i + micro_batch]) * max(sizes[i : i + micro_batch]) for i in range(0, len(sizes), micro_batch)
        )

    shuffled = np.random.default_rng(0).permutation(len(items)).tolist()
    slots = {
        "one conversation a row": padded(shuffled),
        "length buckets": padded(sorted(shuffled, key=lambda i: lengths[i])),
        "first fit": filled(first_fit(lengths, LENGTH)),
        "best fit": filled(best_fit(lengths, LENGTH)),
    }
    return {name: supervised / count for name, count in slots.items()}


def measure(chosen: list[str] | None = None) -> dict[str, Any]:
    """Run races, keep their figures, write the report. Returns all figures there are."""
    from tests.benchmarks.training_report import write_report

    PLACE.mkdir(parents=True, exist_ok=True)
    work = prepared()
    for name in chosen or RACES:
        print(f"training: {name} …", file=sys.stderr, flush=True)
        found: dict[str, Any] = {side: rates(rounds) for side, rounds in race(RACES[name](work)).items()}
        found["when"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        (PLACE / f"race-{name}.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    (PLACE / "race-slots.json").write_bytes(orjson.dumps(supervised_per_slot(work), option=orjson.OPT_INDENT_2))
    figures = {path.stem.removeprefix("race-"): orjson.loads(path.read_bytes()) for path in PLACE.glob("race-*.json")}
    write_report(figures)
    return figures


def main(
    chosen: Annotated[list[str] | None, typer.Argument(help=f"races: {', '.join(RACES)}; all by default")] = None,
) -> None:
    """Measure, and write the dated report."""
    if unknown := set(chosen or ()) - set(RACES):
        raise typer.BadParameter(f"no such race: {', '.join(sorted(unknown))}; there are {', '.join(RACES)}")
    measure(chosen)


if __name__ == "__main__":
    typer.run(main)
