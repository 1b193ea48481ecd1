"""Rewards of one scale: a running mean and deviation for every domain, so that none drowns the others."""

from typing import Any

import numpy as np


class RewardNormaliser:
    """(score − mean) / deviation by domain, clipped at ± `clip`; the moments are of all scores seen so far.

    Moments of batches are merged exactly (Chan, Golub & LeVeque 1979), so ranks that see the same scores in the same
    order hold the same numbers. With fewer than two scores, or no deviation, the score less the mean is clipped.
    """

    def __init__(self, clip: float = 5.0) -> None:
        self.clip = clip
        self._moments: dict[str, tuple[float, float, float]] = {}  # count, mean, sum of squared differences from it

    def __call__(self, scores: np.ndarray, domains: list[str]) -> np.ndarray:
        """Take the scores, shape (n,), into account, and return them normalised, shape (n,) float64."""
        scores = np.asarray(scores, dtype=np.float64)
        if not np.isfinite(scores).all():
            raise ValueError(f"a reward is no finite number: {scores.tolist()}")
        names = np.array(domains)
        result = np.zeros(len(scores))
        for domain in sorted(set(domains)):
            members = names == domain
            self._add(domain, scores[members])
            count, mean, squares = self._moments[domain]
            deviation = (squares / count) ** 0.5
            scaled = (scores[members] - mean) / (deviation if deviation > 1e-8 * max(1.0, abs(mean)) else 1.0)
            result[members] = scaled.clip(-self.clip, self.clip)
        return result

    def _add(self, domain: str, scores: np.ndarray) -> None:
        count, mean, squares = self._moments.get(domain, (0.0, 0.0, 0.0))
        added, its_mean = float(len(scores)), float(scores.mean())
        total, difference = count + added, its_mean - mean
        squares += float(((scores - its_mean) ** 2).sum()) + difference**2 * count * added / total
        self._moments[domain] = (total, mean + difference * added / total, squares)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        return {domain: list(moments) for domain, moments in self._moments.items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._moments = {domain: (float(n), float(mean), float(m2)) for domain, (n, mean, m2) in state.items()}
