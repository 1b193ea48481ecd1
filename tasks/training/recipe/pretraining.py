"""What the stages say that come before any tuning: tokenizer, base model, pretraining."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tasks.settings import StrictModel
from tasks.training.origin import Origin
from tasks.training.recipe.common import ModelShape, Role, StageConfig, TrainedStage


class TokenizerStage(StageConfig):
    """Byte-level BPE trained on the corpus, or a base model's own tokenizer; and the corpus as packed token shards."""

    data: ClassVar[tuple[str, ...]] = ("corpus",)

    kind: Literal["tokenizer"]
    base: Origin | None = Field(None, description="take this model's tokenizer; nothing is learnt from the corpus then")
    vocab_size: int = Field(8192, ge=300, le=2**20)
    sample_bytes: int = Field(16_000_000, ge=1, description="about how much text the merges are learnt from")
    sequence_length: int = Field(512, ge=16)
    heldout_share: float = Field(0.01, gt=0, lt=1, description="share of documents, chosen by doc_id")
    tiers: dict[str, tuple[str, ...]] = Field(
        {}, description="quality tier → sources, for a corpus that says nothing of tiers; a later mixture may name them"
    )

    @model_validator(mode="after")
    def _one_tier_each(self) -> "TokenizerStage":
        named = [source for sources in self.tiers.values() for source in sources]
        twice = sorted({source for source in named if named.count(source) > 1})
        if twice:
            raise ValueError(f"tiers: a source belongs to one tier; named more than once: {', '.join(twice)}")
        return self


class BaseStage(StageConfig):
    """A pretrained model from elsewhere, with the tokenizer that an earlier stage took from the same place."""

    consumes: ClassVar[tuple[Role, ...]] = ("tokenizer",)

    kind: Literal["base"]
    base: Origin
    peak_learning_rate: float | None = Field(
        None, gt=0, le=1, description="of its pretraining, where known: what a later `parent_share` is a share of"
    )


class MixturePart(StrictModel):
    """A part of a mixture: documents that fit all that is named here, and their share of the tokens."""

    weight: float = Field(gt=0, description="share of tokens, relative to the other parts'")
    source: str | None = None
    tier: str | None = Field(None, description="quality tier that the curated corpus gives its documents")
    kind: str | None = None
    language: str | None = None

    @model_validator(mode="after")
    def _names_something(self) -> "MixturePart":
        if not self.conditions:
            raise ValueError("a part of a mixture names a source, tier, kind or language")
        return self

    @property
    def conditions(self) -> dict[str, str]:
        """Column → value of the documents that belong to it."""
        return {name: value for name in ("source", "tier", "kind", "language") if (value := getattr(self, name))}

    @property
    def where(self) -> str:
        return " and ".join(f"{name} {value}" for name, value in self.conditions.items())


class PretrainStage(TrainedStage):
    """A causal language model from scratch on the token shards: all of them in turn, or mixed."""

    consumes: ClassVar[tuple[Role, ...]] = ("tokenizer",)

    kind: Literal["pretrain"]
    model: ModelShape = ModelShape()
    mixture: tuple[MixturePart, ...] = Field((), description="empty: every document, once an epoch")
    heldout_sequences: int = Field(0, ge=0, description="held-out sequences measured at each checkpoint; 0: none")
    patience: int | None = Field(None, ge=1, description="checkpoints without a lower held-out loss before it stops")

    @model_validator(mode="after")
    def _heads_divide(self) -> "PretrainStage":
        split, model = self.parallel, self.model
        if split and (model.heads % (split.tensor * split.sequence) or model.key_value_heads % split.tensor):
            raise ValueError(
                f"heads {model.heads} and key_value_heads {model.key_value_heads} must be multiples of "
                f"tensor x sequence ({split.tensor * split.sequence}) and tensor ({split.tensor})"
            )
        if split and model.layers % split.pipeline:
            raise ValueError(f"layers {model.layers} must be a multiple of pipeline {split.pipeline}")
        return self

    @model_validator(mode="after")
    def _patient_with_something(self) -> "PretrainStage":
        if self.patience is not None and not self.heldout_sequences:
            raise ValueError("patience waits for a lower held-out loss; say how many heldout_sequences to measure")
        return self
