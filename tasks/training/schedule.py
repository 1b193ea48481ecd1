"""Learning rates by step."""

import math

from tasks.training.recipe import Optimizer


def learning_rate(step: int, steps: int, optimizer: Optimizer) -> float:
    """Rate of step `step` (from 0) of `steps`: linear warm-up to the peak, then what the schedule says.

    The first step already moves, and the peak is reached at step `warmup_steps`. *cosine*: half a cosine to the final
    share at the last step. *wsd* (Hu et al. 2024): the peak, until over the last `decay_share` of the steps the rate
    falls in a straight line to the final share. *constant*: the peak.
    """
    peak, warmup = optimizer.learning_rate, min(optimizer.warmup_steps, steps - 1)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    last = steps - 1
    if optimizer.schedule == "constant" or last == warmup:  # all warm-up: the last step is the peak
        left = 1.0
    elif optimizer.schedule == "wsd":
        decay = min(last - warmup, max(1, round(optimizer.decay_share * steps)))
        left = min(1.0, (last - step) / decay)
    else:
        left = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (last - warmup)))
    return peak * (optimizer.final_share + (1 - optimizer.final_share) * left)
