"""One rank of the rollout benchmark: `python rollout_side.py once|sharded|plain MODEL FOLDER`.

`once` draws as the stage *rlhf* does: weights gathered, then every rank for itself. `sharded` lets DeepSpeed gather
every layer for every token. `plain` is transformers' own `generate` on one process. Prints `DONE {"tokens", …}`.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from tasks.training.engine import Engine, join_ranks
from tasks.training.model import load_model
from tasks.training.rl.policy import with_value_head, without_critic
from tasks.training.rl.rollout import Sampler
from tests.benchmarks.pace import Work
from tests.benchmarks.training_side import RANK, WORLD, context, stage

MARK = "DONE "
PROMPTS, LENGTH, NEW_TOKENS, BATCH = 16, 48, 40, 16  # of one rank; sharded draws fewer tokens, see below
SHARDED_TOKENS = 6
TEMPERATURE = 0.8


def prompts(vocabulary: int) -> list[np.ndarray]:
    draw = np.random.default_rng(RANK)
    return [draw.integers(10, vocabulary, LENGTH) for _ in range(PROMPTS)]


def generate(model: Any, new_tokens: int, **more: Any) -> int:
    """Draw to the full length from a model; how many tokens that was."""
    ids = torch.tensor(np.array(prompts(model.config.vocab_size)))
    with torch.inference_mode():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), min_new_tokens=new_tokens, max_new_tokens=new_tokens,
            do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, **more,
        )  # fmt: skip
    return int(found[:, LENGTH:].numel())


def timed(work: Any) -> tuple[int, float]:
    work()  # warm
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    start = time.monotonic()
    tokens = work()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    return tokens, time.monotonic() - start


def main(kind: str, folder: Path, scratch: Path) -> None:
    torch.set_num_threads(1)
    if kind == "plain":
        model: Any = load_model(folder)
        model.eval()
        tokens, seconds = timed(lambda: generate(model, NEW_TOKENS))
        return print("\n" + MARK + orjson.dumps({"tokens": tokens, "seconds": seconds}).decode(), flush=True)
    work = Work(model=str(folder), conversations="", ranks=WORLD, threads=1)
    config = stage(work)
    join_ranks(context(scratch, config, work))
    if kind == "sharded":
        engine = Engine(load_model(folder), config)
        engine._engine.eval()
        sharded = engine._engine.module
        tokens, seconds = timed(lambda: generate(sharded, SHARDED_TOKENS, synced_gpus=True))
    else:
        engine, sampler = Engine(with_value_head(folder), config), Sampler(folder, TEMPERATURE, NEW_TOKENS)
        asked = prompts(sampler.model.config.vocab_size)

        def draw() -> int:
            sampler.load(without_critic(engine.gather()))
            return sum(len(answer.ids) for answer in sampler.draw(asked, 0, BATCH))

        tokens, seconds = timed(draw)
    total = torch.tensor(float(tokens))
    torch.distributed.all_reduce(total)
    if RANK == 0:
        print("\n" + MARK + orjson.dumps({"tokens": int(total), "seconds": seconds}).decode(), flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)
