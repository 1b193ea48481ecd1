"""What PPO, GRPO and reward models compute, written out in NumPy, one number after another."""

import numpy as np


def gae(rewards, values, mask, discount, decay, beyond):
    """Advantages as the sum over later errors of (γλ)^l · δ, of the tokens that the policy chose alone."""
    advantages = np.zeros_like(values)
    for row in range(len(values)):
        places = np.flatnonzero(mask[row])
        for start, place in enumerate(places):
            total = 0.0
            for later in range(start, len(places)):
                here = places[later]
                after = values[row, places[later + 1]] if later + 1 < len(places) else beyond[row]
                delta = rewards[row, here] + discount * after - values[row, here]
                total += (discount * decay) ** (later - start) * delta
            advantages[row, place] = total
    return advantages


def policy_loss(new, old, advantages, mask, tokens, clip):
    """PPO's clipped objective, with its gradient by `new`."""
    loss, gradient = 0.0, np.zeros_like(new)
    for place in np.ndindex(new.shape):
        if not mask[place]:
            continue
        ratio, advantage = np.exp(new[place] - old[place]), advantages[place]
        plain, cut = ratio * advantage, min(max(ratio, 1 - clip), 1 + clip) * advantage
        loss -= min(plain, cut) / tokens
        if plain <= cut:
            gradient[place] = -plain / tokens
    return loss, gradient


def value_loss(new, old, returns, mask, tokens, clip):
    total = 0.0
    for place in np.ndindex(new.shape):
        if mask[place]:
            near = old[place] + min(max(new[place] - old[place], -clip), clip)
            total += 0.5 * max((new[place] - returns[place]) ** 2, (near - returns[place]) ** 2)
    return total / tokens


def preference_loss(chosen, rejected, margin, tie):
    probability = 1 / (1 + np.exp(-(chosen - rejected - (0 if tie else margin))))
    return -0.5 * (np.log(probability) + np.log(1 - probability)) if tie else -np.log(probability)


def group_advantages(scores, groups):
    return np.array(
        [
            (score - np.mean(own)) / np.std(own) if np.std(own) > 0 else 0.0
            for score, group in zip(scores, groups, strict=True)
            for own in [[s for s, g in zip(scores, groups, strict=True) if g == group]]
        ]
    )
