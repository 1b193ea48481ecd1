"""How far a policy has gone from its reference: estimators per token, and the coefficient that holds it near."""

from typing import Any, Literal

import torch

Estimator = Literal["k1", "k2", "k3"]


def kl_estimate(policy: torch.Tensor, reference: torch.Tensor, estimator: Estimator = "k3") -> torch.Tensor:
    """KL(policy ‖ reference) of tokens that the policy drew, from both log-probs; any shape → the same.

    Schulman, *Approximating KL Divergence* (2020): k1 = log π/ρ, unbiased, of either sign; k2 = ½ (log π/ρ)², biased,
    little variance; k3 = ρ/π − 1 − log ρ/π, unbiased and never negative.
    """
    log_ratio = reference - policy
    if estimator == "k1":
        return -log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return torch.expm1(log_ratio) - log_ratio


class AdaptiveKl:
    """The coefficient β of the KL penalty, steered towards a target (Ziegler et al. 2019, §2.2).

    After each batch β grows by the relative error of the measured KL, cut at ±20%, times `samples` / `horizon`.
    `target` None keeps β as it is.
    """

    def __init__(self, coefficient: float, target: float | None = None, horizon: float = 10_000) -> None:
        self.coefficient, self.target, self.horizon = coefficient, target, horizon

    def update(self, kl: float, samples: int) -> None:
        """Take account of a batch of `samples` answers whose mean KL was `kl` nats."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.coefficient *= 1 + error * samples / self.horizon

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        return {"coefficient": self.coefficient}

    def restore(self, state: dict[str, Any]) -> None:
        self.coefficient = float(state["coefficient"])
