"""What a recipe may say of tuning (stages *sft* and *adapt*). Light: nothing here imports torch."""

from typing import Literal

from pydantic import Field, model_validator

from tasks.settings import StrictModel

STANDARD_MIXTURE = {"general": 0.30, "code": 0.25, "reasoning": 0.20, "creative": 0.15, "refusals": 0.10}
USUAL_SHARE = (0.05, 0.10)  # of the parent's peak learning rate
USUAL_EPOCHS = (1.0, 3.0)


class Lora(StrictModel):
    """Low-rank adapters in place of the weights themselves (Hu et al. 2021)."""

    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0, description="the adapters' product is scaled by alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] = Field((), description="names of the linear layers; empty: all of them but the head")


class Curriculum(StrictModel):
    """Groups that the model does worse on come more often: weight x (loss / mean loss) ^ strength."""

    by: Literal["category", "difficulty"] = "category"
    strength: float = Field(1.0, gt=0)
    limit: float = Field(2.0, gt=1, description="no weight leaves [1 / limit, limit] times what it began with")


class Unfreezing(StrictModel):
    """Attention learns from the start, the other weights later; the last feed-forward layers first."""

    every: int = Field(1000, ge=1, description="steps between two portions")
    share: float = Field(0.1, gt=0, le=1, description="of the feed-forward layers that a portion frees")
    last: int = Field(500, ge=1, description="steps at the end in which everything learns")
    scaled_from: int | None = Field(
        None, ge=1, description="steps of the run that `every` and `last` are meant for; in another they scale with it"
    )

    def of(self, steps: int) -> tuple[int, int]:
        """`every` and `last` in a run of so many steps."""
        if self.scaled_from is None:
            return self.every, self.last
        every, last = (max(1, round(count * steps / self.scaled_from)) for count in (self.every, self.last))
        return every, last


class Augmentation(StrictModel):
    """Another wording of a share of the questions, never of an answer."""

    share: float = Field(gt=0, le=1, description="of the training records")
    kinds: tuple[Literal["case", "space", "typo"], ...] = Field(("case", "space", "typo"), min_length=1)


class Mixture(StrictModel):
    """Share of tokens by category of the records. Categories that are not named are left out."""

    shares: dict[str, float]

    @model_validator(mode="before")
    @classmethod
    def _standard(cls, value: object) -> object:
        if value == "standard":
            return {"shares": STANDARD_MIXTURE}
        return value if isinstance(value, dict) and "shares" in value else {"shares": value}

    @model_validator(mode="after")
    def _adds_up(self) -> "Mixture":
        if any(share <= 0 for share in self.shares.values()) or abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"shares of a mixture must be positive and add up to 1, not {sum(self.shares.values()):g}")
        return self
