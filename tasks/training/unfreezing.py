"""Progressive unfreezing: attention learns from the start, feed-forward layers in portions, the rest at the end."""

import math
import re

from tasks.training.engine import Engine
from tasks.training.loop import Companion
from tasks.training.tuning import Unfreezing

ATTENTION, REST = "attention", "rest"
FEED_FORWARD = re.compile(r"layers\.(\d+)\.(?:mlp|feed_forward|block_sparse_moe)\.")


def unit_of(name: str) -> str:
    """What a parameter freezes with: `attention`, `ffn.<layer>`, or `rest` (embeddings, norms, head)."""
    if found := FEED_FORWARD.search(name):
        return f"ffn.{found[1]}"
    return ATTENTION if ".self_attn." in name or ".attention." in name else REST


def frozen_units(units: set[str], step: int, steps: int, config: Unfreezing) -> set[str]:
    """Which units are frozen in step `step` (from 0) of `steps`.

    From step `every` on, and at each multiple of it, another `share` of the feed-forward layers learns, the last
    layers first; in the last `last` steps everything does.
    """
    every, last = config.of(steps)
    if step >= steps - last:
        return set()
    layers = sorted((unit for unit in units if unit.startswith("ffn.")), key=lambda unit: -int(unit[4:]))
    portions = step // every
    free = min(len(layers), math.ceil(round(portions * config.share * len(layers), 9)))
    return {*layers[free:], *(units & {REST})}


class ProgressiveUnfreezing(Companion):
    """Freezes and frees before a step what the schedule says. It follows from the step, so it has no state."""

    name = "unfreezing"

    def __init__(self, config: Unfreezing) -> None:
        self.config = config

    def before_step(self, engine: Engine, step: int, steps: int) -> None:
        engine.freeze(frozen_units(engine.units, step, steps, self.config))
