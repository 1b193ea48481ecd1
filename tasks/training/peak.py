"""The peak learning rate of a tuned stage, as a share of its parent's where the recipe says so."""

from typing import TypeVar

from tasks.corpus.artifact import Artifact
from tasks.errors import ConfigError
from tasks.training.recipe import RewardStage, RlhfStage, TuningStage

Tuned = TypeVar("Tuned", TuningStage, RewardStage, RlhfStage)


def with_peak(config: Tuned, parent: Artifact) -> Tuned:
    """The same configuration with its peak learning rate. Raises ConfigError when the parent records none."""
    share, peak = config.optimizer.parent_share, parent.metrics.get("peak_learning_rate")
    if share is None:
        return config
    if not peak:
        raise ConfigError(
            f"stage '{config.name}': parent_share {share:g} of what? its parent records no peak_learning_rate; give "
            "learning_rate instead"
        )
    optimizer = config.optimizer.model_copy(update={"learning_rate": share * peak, "parent_share": None})
    return config.model_copy(update={"optimizer": optimizer})


def rate_share(config: TuningStage | RewardStage | RlhfStage, parent: Artifact) -> float | None:
    """The peak learning rate as a share of the parent's, where that is known."""
    peak = parent.metrics.get("peak_learning_rate")
    return config.optimizer.learning_rate / peak if peak else None
