"""What the stages say that learn from preferences: reward models, and policies that earn their rewards."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tasks.settings import StrictModel
from tasks.training.preferences.records import OVERALL
from tasks.training.recipe.common import Role, TrainedStage
from tasks.training.recipe.tuning import TuningOptimizer

FUNCTIONS = ("exact_answer", "code_tests")  # rewards that need no model


class RewardStage(TrainedStage):
    """A reward model of one domain: Bradley–Terry on pairs of answers, one head for each criterion."""

    consumes: ClassVar[tuple[Role, ...]] = ("model",)
    data: ClassVar[tuple[str, ...]] = ("preferences",)

    kind: Literal["reward"]
    optimizer: TuningOptimizer
    epochs: float = Field(1.0, gt=0, description="most passes over the pairs; after one it soon overfits")
    domain: str | None = Field(None, description="of the pairs; none: all of them")
    criteria: dict[str, float] = Field(
        {OVERALL: 1.0}, min_length=1, description="what answers are judged by, and its weight in the reward"
    )
    sequence_length: int = Field(512, ge=16, description="pairs are packed into this many tokens; longer are left out")
    heldout_share: float = Field(0.1, gt=0, lt=1, description="share of prompts, chosen by their hash")
    max_pairs: int = Field(20_000, ge=1, description="most pairs, chosen by their prompt's hash")
    heldout_sequences: int = Field(16, ge=1, description="most of them measured at each checkpoint")
    patience: int | None = Field(3, ge=1, description="checkpoints without a lower held-out loss before it stops")

    @model_validator(mode="after")
    def _weighs(self) -> "RewardStage":
        if not all(weight > 0 for weight in self.criteria.values()):
            raise ValueError("every criterion needs a weight above 0; leave out what must not count")
        return self


class KlControl(StrictModel):
    """How near the policy stays to the model that it began as."""

    coefficient: float = Field(0.05, ge=0, description="β at the start: what a nat of divergence costs in reward")
    target: float | None = Field(None, gt=0, description="nats an answer that β steers towards; none: β stays")
    horizon: float = Field(1000, gt=0, description="answers over which β follows")
    estimator: Literal["k1", "k2", "k3"] = Field("k3", description="of what is reported, and of GRPO's loss")
    bound: float = Field(1.0, gt=0, description="nats a token at which training ends rather than go on")


class Replay(StrictModel):
    """What is learnt from again. PPO and GRPO are on-policy, so a stage replays nothing unless it has this."""

    prompts: float = Field(0.0, ge=0, le=1, description="share of a round's prompts drawn by priority, not in turn")
    answers: float = Field(0.0, ge=0, le=1, description="stale answers, as a share of a round's own")
    alpha: float = Field(0.6, ge=0, description="draws are proportional to priority^α; 0: all alike")
    semantic: float = Field(0.5, ge=0, le=1, description="how far nearness to the domain's centroid counts")
    staleness: int = Field(4, ge=1, description="rounds after which an answer is too old to learn from")
    capacity: int = Field(256, ge=1, description="of a domain; the oldest go first")
    bound: float = Field(2.0, ge=1, description="importance weights of stale answers are truncated at this")

    @model_validator(mode="after")
    def _does_something(self) -> "Replay":
        if not self.prompts and not self.answers:
            raise ValueError("replay of no prompts and no answers; give a share of either, or leave `replay` out")
        return self


class RlhfStage(TrainedStage):
    """Reinforcement learning from rewards: PPO (Schulman et al. 2017) or GRPO (Shao et al. 2024). A step is one round:
    answers drawn, scored, and learnt from `updates` times."""

    consumes: ClassVar[tuple[Role, ...]] = ("model",)
    data: ClassVar[tuple[str, ...]] = ("instructions",)

    kind: Literal["rlhf"]
    optimizer: TuningOptimizer
    method: Literal["ppo", "grpo"] = "ppo"
    rewards: dict[str, float] = Field(
        min_length=1, description=f"weight by name: of an earlier reward stage, or {' or '.join(FUNCTIONS)}"
    )
    critic: Literal["shared", "separate"] = Field(
        "shared", description="one column more of the policy's head, or a model of its own; PPO alone has a critic"
    )
    prompts: int = Field(16, ge=1, description="different prompts of a round, over all processes")
    samples: int = Field(1, ge=1, description="answers to each prompt; GRPO compares them, so it needs two or more")
    new_tokens: int = Field(64, ge=1, description="longest answer")
    prompt_tokens: int = Field(256, ge=8, description="longer prompts are left out")
    temperature: float = Field(0.8, gt=0, description="answers are drawn at; 0.7 to 0.9")
    updates: int = Field(2, ge=1, description="passes over a round's answers, each one optimizer step")
    clip: float = Field(0.2, gt=0, lt=1, description="ratio of new to old policy is cut at 1 ± this")
    value_clip: float = Field(0.2, gt=0)
    value_weight: float = Field(0.5, ge=0, description="of the critic's loss; PPO alone has a critic")
    entropy_weight: float = Field(0.0, ge=0)
    discount: float = Field(1.0, gt=0, le=1)
    decay: float = Field(0.95, ge=0, le=1, description="λ of generalised advantage estimation")
    kl: KlControl = KlControl()
    replay: Replay | None = None
    reward_clip: float = Field(5.0, gt=0, description="normalised rewards are cut at ± this")
    unended: float = Field(0.0, ge=0, description="taken off the reward of an answer that reached new_tokens")
    categories: tuple[str, ...] = Field((), description="of the records that are asked from; empty: all of them")
    heldout_share: float = Field(0.1, gt=0, lt=1, description="share of prompts, chosen by their hash")
    max_records: int = Field(20_000, ge=1)
    unusual: bool = Field(False, description="a temperature outside 0.7-0.9 is meant")

    @model_validator(mode="after")
    def _fits(self) -> "RlhfStage":
        if self.method == "grpo" and self.samples < 2:
            raise ValueError("grpo compares answers to the same prompt; samples must be 2 or more")
        if self.method == "grpo" and self.critic == "separate":
            raise ValueError("grpo has no critic; leave `critic` out")
        if self.prompts % self.processes:
            raise ValueError(f"prompts must be a multiple of processes ({self.processes}), which draw as many each")
        if not 0.7 <= self.temperature <= 0.9 and not self.unusual:
            raise ValueError("temperature is not in [0.7, 0.9]; `unusual: true` says it is meant")
        if not all(weight > 0 for weight in self.rewards.values()):
            raise ValueError("every reward needs a weight above 0; leave out what must not count")
        return self

    @property
    def reward_stages(self) -> list[str]:
        """Rewards that are models, made by earlier stages."""
        return [name for name in self.rewards if name not in FUNCTIONS]
