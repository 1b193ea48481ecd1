"""A policy and its critic, on one backbone or two: one pass gives next tokens' logits and the value of what is read."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from tasks.training.model import load_model

HEAD, CRITIC = "lm_head.", "critic."


class PolicyAndValue(nn.Module):
    """The vocabulary's head with one column more, the value: (…, hidden) → (…, vocab + 1)."""

    def __init__(self, policy: nn.Linear) -> None:
        super().__init__()
        self.policy = policy
        self.value = _value_head(policy.in_features)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.policy(hidden), self.value(hidden).to(hidden.dtype)], -1)


class PolicyAndCritic(nn.Module):
    """Two models that read the same tokens: the policy, and a critic whose head is one value."""

    def __init__(self, policy: Any, critic: Any) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic
        critic.config.tie_word_embeddings = False
        critic.set_output_embeddings(_value_head(critic.get_output_embeddings().in_features))

    def forward(self, **inputs: Any) -> CausalLMOutput:
        """Logits (…, vocab + 1), the value last."""
        logits, value = self.policy(**inputs).logits, self.critic(**inputs).logits
        return CausalLMOutput(logits=torch.cat([logits, value.to(logits.dtype)], -1))

    def output_heads(self) -> list[nn.Module]:
        """Both heads, for what chooses the tokens that heads are computed for."""
        return [model.get_output_embeddings() for model in (self.policy, self.critic)]

    def activation_checkpointing_enable(self, options: dict[str, Any]) -> None:
        for model in (self.policy, self.critic):
            model.activation_checkpointing_enable(options)


def _value_head(size: int) -> nn.Linear:
    head = nn.Linear(size, 1)
    nn.init.zeros_(head.weight)  # a critic that expects nothing, whatever the seed
    nn.init.zeros_(head.bias)
    return head


def with_critic(parent: Path, critic: Literal["shared", "separate"]) -> Any:
    """The parent with a critic, which begins as the parent too where it is a model of its own."""
    return with_value_head(parent) if critic == "shared" else PolicyAndCritic(load_model(parent), load_model(parent))


def with_value_head(parent: Path) -> Any:
    """The parent with a value beside its logits. Tied embeddings stay tied."""
    model: Any = load_model(parent)
    model.set_output_embeddings(PolicyAndValue(model.get_output_embeddings()))
    return model


def without_critic(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gathered weights under the names of a plain language model."""
    if any(name.startswith(CRITIC) for name in state):
        return {name.removeprefix("policy."): w for name, w in state.items() if not name.startswith(CRITIC)}
    return {
        name.replace(f"{HEAD}policy.", HEAD): weight
        for name, weight in state.items()
        if not name.startswith(f"{HEAD}value.")
    }
