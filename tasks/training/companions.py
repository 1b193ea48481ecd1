"""What goes along with tuning: held-out losses, early stopping that keeps the best, and a curriculum."""

from collections.abc import Mapping
from typing import Any

from tasks.training.data import Source, collate_tight
from tasks.training.engine import Engine
from tasks.training.loop import Companion
from tasks.training.losses import IGNORED, Losses, token_losses
from tasks.training.recipe import PretrainStage, RewardStage, TuningStage
from tasks.training.sampling import REPLAY, WeightedOrder
from tasks.training.tuning import Curriculum


class HeldOut(Companion):
    """Loss on held-out records or documents before every checkpoint. The best checkpoint stays; after `patience` worse
    ones the run is done."""

    name = "heldout"

    def __init__(
        self,
        sources: Mapping[str, Source],
        config: TuningStage | PretrainStage | RewardStage,
        *,
        rank: int,
        pad: int,
        losses_of: Losses = token_losses,
    ) -> None:
        self.sources, self.config, self.rank, self.pad, self.losses_of = sources, config, rank, pad, losses_of
        self.losses: dict[int, float] = {}  # by step
        self.by_category: dict[str, float] = {}  # the last measured

    def before_checkpoint(self, engine: Engine, step: int) -> dict[str, Any]:
        sums, tokens = {}, {}
        most = max(1, self.config.heldout_sequences // len(self.sources))
        for name, source in self.sources.items():
            count = min(most, len(source))
            chosen = [i * len(source) // count for i in range(count)]
            sums[name], tokens[name] = self._measure(engine, source, chosen)
        self.by_category = {name: sums[name] / tokens[name] for name in sums if tokens[name]}
        self.losses[step] = sum(sums.values()) / sum(tokens.values())
        figures: dict[str, Any] = {"heldout_loss": self.losses[step]}
        return figures | ({"heldout_loss_by_category": self.by_category} if len(self.sources) > 1 else {})

    def _measure(self, engine: Engine, source: Source, chosen: list[int]) -> tuple[float, float]:
        """Sum of the losses and number of supervised tokens over all ranks, which all take as many turns."""
        size, loss, tokens = self.config.micro_batch, 0.0, 0
        for start in range(0, len(chosen), size * engine.world):
            mine = chosen[start + self.rank * size :][:size]
            batch = collate_tight([source[i] for i in mine], self.pad)
            loss += float(engine.evaluate(batch, self.losses_of)[batch.labels != IGNORED].double().sum())
            tokens += batch.supervised
        total, supervised = engine.sum(loss, tokens)
        return total, supervised

    @property
    def best(self) -> int:
        """The step of the lowest loss, the first of equals."""
        return min(self.losses, key=lambda step: (self.losses[step], step))

    @property
    def done(self) -> bool:  # type: ignore[override]
        worse = sum(step > self.best for step in self.losses) if self.losses else 0
        return self.config.patience is not None and worse >= self.config.patience

    def keeps(self) -> set[int]:
        return {self.best} if self.losses else set()

    def state(self) -> Any:
        return {"losses": list(self.losses.items()), "by_category": self.by_category}

    def restore(self, state: Any) -> None:
        self.losses = {int(step): loss for step, loss in state["losses"]}
        self.by_category = dict(state["by_category"])


class DynamicCurriculum(Companion):
    """New weights before every checkpoint, from the held-out loss of each category as it is now."""

    name = "curriculum"

    def __init__(self, config: Curriculum, heldout: HeldOut, order: WeightedOrder) -> None:
        self.config, self.heldout, self.order = config, heldout, order
        self.base = order.weights

    def before_checkpoint(self, engine: Engine, step: int) -> dict[str, Any]:
        self.order.reweigh(curriculum_weights(self.base, self.heldout.by_category, self.config))
        return {"weights": self.order.weights}

    def state(self) -> Any:
        return self.order.state()

    def restore(self, state: Any) -> None:
        self.order.restore(state)


def curriculum_weights(base: Mapping[str, float], losses: Mapping[str, float], config: Curriculum) -> dict[str, float]:
    """Weights by category: base x (loss / mean loss) ^ strength, within the limit; replay keeps its share.

    A category without a loss counts as average. The weights add up to what `base` adds up to.
    """
    moving = {name: weight for name, weight in base.items() if name != REPLAY}
    known = [losses[name] for name in moving if name in losses]
    if not known:
        return dict(base)
    mean = sum(known) / len(known)
    raised = {}
    for name, weight in moving.items():
        factor = (losses.get(name, mean) / mean) ** config.strength
        raised[name] = weight * min(config.limit, max(1 / config.limit, factor))
    scale = sum(moving.values()) / sum(raised.values())
    return {**base, **{name: weight * scale for name, weight in raised.items()}}
