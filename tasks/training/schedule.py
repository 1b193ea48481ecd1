"""Learning rates by step."""

import math

from tasks.training.recipe import Optimizer


def learning_rate(step: int, steps: int, optimizer: Optimizer) -> float:
    """Rate of step `step` (from 0) of `steps`: linear warm-up to the peak, then half a cosine to the final share.

    The first step already moves; the peak is reached at step `warmup_steps`, the final share at the last step.
    """
    peak, warmup = optimizer.learning_rate, min(optimizer.warmup_steps, steps - 1)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, steps - 1 - warmup)
    return peak * (optimizer.final_share + (1 - optimizer.final_share) * 0.5 * (1 + math.cos(math.pi * done)))
