"""A policy and its critic on one backbone: one pass gives the next token's logits and the value of what is there."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.training.model import load_model

HEAD = "lm_head."


class PolicyAndValue(nn.Module):
    """The vocabulary's head with one column more, the value: (…, hidden) → (…, vocab + 1)."""

    def __init__(self, policy: nn.Linear) -> None:
        super().__init__()
        self.policy = policy
        self.value = nn.Linear(policy.in_features, 1)
        nn.init.zeros_(self.value.weight)  # a critic that expects nothing, whatever the seed
        nn.init.zeros_(self.value.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.policy(hidden), self.value(hidden).to(hidden.dtype)], -1)


def with_value_head(parent: Path) -> Any:
    """The parent with a value beside its logits. Tied embeddings stay tied."""
    model: Any = load_model(parent)
    model.set_output_embeddings(PolicyAndValue(model.get_output_embeddings()))
    return model


def without_value_head(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gathered weights under the names of a plain language model."""
    return {
        name.replace(f"{HEAD}policy.", HEAD): weight
        for name, weight in state.items()
        if not name.startswith(f"{HEAD}value.")
    }
