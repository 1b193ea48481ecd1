"""Recipes: a cascade of training stages as typed YAML (`data_contracts/recipes/*.yaml`), one module a kind of stage.

Light on purpose: a DAG is drawn from a recipe at parse time, so nothing here imports torch.
"""

from typing import Annotated

from pydantic import Field, model_validator

from tasks.errors import ConfigError
from tasks.settings import StrictModel, load_yaml, named_file
from tasks.training.recipe.common import Fp32Operation, ModelShape, Optimizer, Role, Rollback, StageConfig, TrainedStage
from tasks.training.recipe.pretraining import BaseStage, MixturePart, PretrainStage, TokenizerStage
from tasks.training.recipe.rewards import FUNCTIONS, KlControl, Replay, RewardStage, RlhfStage
from tasks.training.recipe.tuning import AdaptStage, SftStage, TuningOptimizer, TuningStage
from tasks.training.tuning import USUAL_SHARE

__all__ = [
    "FUNCTIONS",
    "PROVIDES",
    "AdaptStage",
    "BaseStage",
    "Fp32Operation",
    "KlControl",
    "MixturePart",
    "ModelShape",
    "Optimizer",
    "PretrainStage",
    "Recipe",
    "Replay",
    "RewardStage",
    "RlhfStage",
    "Role",
    "Rollback",
    "SftStage",
    "Stage",
    "StageConfig",
    "TokenizerStage",
    "TrainedStage",
    "TuningOptimizer",
    "TuningStage",
    "load_recipe",
]

Stage = Annotated[
    TokenizerStage | BaseStage | PretrainStage | SftStage | AdaptStage | RewardStage | RlhfStage,
    Field(discriminator="kind"),
]
PROVIDES: dict[str, tuple[Role, ...]] = {
    "tokenizer": ("tokenizer",),
    "base": ("model",),
    "pretrain": ("model",),
    "sft": ("model",),
    "adapt": ("model",),
    "reward": ("reward",),
    "rlhf": ("model",),
}


class Recipe(StrictModel):
    """An ordered cascade of stages."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    description: str = ""
    stages: list[Stage] = Field(min_length=1)

    @model_validator(mode="after")
    def _sound(self) -> "Recipe":
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"stage names must differ; more than once: {', '.join(twice)}")
        for stage in self.stages:
            self.parents(stage.name)
        return self

    def notes(self) -> list[str]:
        """What a person should know before it is run, though nothing is wrong with it."""
        found = []
        for stage in self.stages:
            if not isinstance(stage, TuningStage) or stage.unusual or not stage.optimizer.learning_rate:
                continue
            parent = self.stage(self.parents(stage.name)["model"])
            if isinstance(parent, TrainedStage) and parent.optimizer.learning_rate:
                share = stage.optimizer.learning_rate / parent.optimizer.learning_rate
                if not USUAL_SHARE[0] <= share <= USUAL_SHARE[1]:
                    found.append(
                        f"stage '{stage.name}': its peak learning rate is {share:.0%} of its parent's; 5-10% is usual "
                        "(`unusual: true` says that it is meant)"
                    )
        return found

    @property
    def data(self) -> set[str]:
        """What its stages read besides each other's artifacts."""
        return {name for stage in self.stages for name in stage.data}

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises ConfigError that lists the names there are."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ConfigError(f"recipe {self.name}: no stage '{name}'; there are: {', '.join(s.name for s in self.stages)}")

    def parents(self, name: str) -> dict[str, str]:
        """Role → name of the nearest earlier stage that provides it; a reward model's role is its stage's name."""
        stage = self.stage(name)
        earlier = self.stages[: self.stages.index(stage)]
        found: dict[str, str] = {}
        for role in stage.consumes:
            givers = [item.name for item in earlier if role in PROVIDES[item.kind]]
            if not givers:
                raise ValueError(f"stage '{name}' ({stage.kind}) needs a {role}, but no earlier stage makes one")
            found[role] = givers[-1]
        for reward in stage.reward_stages if isinstance(stage, RlhfStage) else ():
            if not any(item.name == reward and "reward" in PROVIDES[item.kind] for item in earlier):
                raise ValueError(
                    f"stage '{name}' is rewarded by '{reward}', but no earlier reward stage has that name; functions "
                    f"are: {', '.join(FUNCTIONS)}"
                )
            found[reward] = reward
        return found


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by its name in data_contracts/recipes, or by path.

    Raises ConfigError naming the file and the key; an unknown key is answered with the nearest known one.
    """
    return load_yaml(Recipe, named_file("recipes", name_or_path))
