"""What the stages say that tune a model on conversations: instruction tuning, adaptation to a domain."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tasks.training.recipe.common import Optimizer, Role, TrainedStage
from tasks.training.tuning import USUAL_EPOCHS, USUAL_SHARE, Augmentation, Curriculum, Lora, Mixture, Unfreezing


class TuningOptimizer(Optimizer):
    """AdamW whose peak may be said as a share of the parent's."""

    learning_rate: float = Field(0.0, ge=0, le=1, description="peak; 0: parent_share says it")
    parent_share: float | None = Field(None, gt=0, le=1, description="peak as a share of the parent's own peak")

    @model_validator(mode="after")
    def _one_peak(self) -> "TuningOptimizer":
        if (self.learning_rate > 0) == (self.parent_share is not None):
            raise ValueError("give either learning_rate or parent_share, the peak as a share of the parent's")
        return self


class TuningStage(TrainedStage):
    """Tuning on conversations: loss on the assistant's tokens alone, under the tokenizer's chat template."""

    consumes: ClassVar[tuple[Role, ...]] = ("model",)
    data: ClassVar[tuple[str, ...]] = ("instructions",)

    usual_epochs: ClassVar[tuple[float, float]] = USUAL_EPOCHS

    optimizer: TuningOptimizer
    epochs: float = Field(3.0, gt=0, description="most passes over the records; 1 to 3")
    unusual: bool = Field(False, description="a share of the rate outside 5-10%, or epochs outside 1-3, are meant")
    sequence_length: int = Field(512, ge=16, description="conversations are packed into this many tokens")
    heldout_share: float = Field(0.05, gt=0, lt=1, description="share of records, chosen by their content's hash")
    max_records: int = Field(20_000, ge=1, description="most records, chosen by their content's hash")
    mixture: Mixture | None = Field(None, description="shares by category, or `standard`; none: as the records come")
    replay: float = Field(0.05, ge=0, lt=1, description="share of tokens from the parent's pretraining data")
    patience: int | None = Field(3, ge=1, description="checkpoints without a lower held-out loss before it stops")
    heldout_sequences: int = Field(16, ge=1, description="most of them, over all categories, at each checkpoint")
    curriculum: Curriculum | None = None
    lora: Lora | None = None
    unfreezing: Unfreezing | None = None
    augmentation: Augmentation | None = None

    @model_validator(mode="after")
    def _usual(self) -> "TuningStage":
        share, low, high = self.optimizer.parent_share, *USUAL_SHARE
        if share is not None and not low <= share <= high and not self.unusual:
            raise ValueError(f"parent_share {share:g} is not in [{low:g}, {high:g}]; `unusual: true` says it is meant")
        few, many = self.usual_epochs
        if not few <= self.epochs <= many and not self.unusual:
            raise ValueError(f"epochs {self.epochs:g} are not in [{few:g}, {many:g}]; say `unusual: true` if meant")
        if self.lora and self.unfreezing:
            raise ValueError("lora freezes every weight for good, nothing is left to unfreeze; leave one of them out")
        if self.mixture and self.curriculum and self.curriculum.by == "difficulty":
            raise ValueError("a mixture is by category, this curriculum by difficulty; leave one of them out")
        return self


class SftStage(TuningStage):
    """Instruction tuning of a pretrained model."""

    kind: Literal["sft"]


class AdaptOptimizer(TuningOptimizer):
    """AdamW at the very low rate of domain adaptation."""

    learning_rate: float = Field(ge=1e-7, le=1e-6, description="peak; 1e-7 to 1e-6, whatever the parent's was")
    parent_share: None = None


class AdaptStage(TuningStage):
    """Adaptation to a small domain: hundreds of steps at a very low rate, judged on the domain and in general."""

    kind: Literal["adapt"]
    usual_epochs: ClassVar[tuple[float, float]] = (0.0, 100.0)  # a small domain is gone through again and again

    optimizer: AdaptOptimizer
    steps: int = Field(ge=100, lt=1000, description="most optimizer steps; hundreds")
    epochs: float = Field(100.0, gt=0, description="most passes over the records")
    categories: tuple[str, ...] = Field((), description="of the records that make the domain; empty: all of them")
