"""Recipes: a cascade of training stages as typed YAML (`data_contracts/recipes/*.yaml`).

Light on purpose: a DAG is drawn from a recipe at parse time, so nothing here imports torch.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.errors import ConfigError
from tasks.settings import StrictModel, load_yaml, named_file

Role = Literal["tokenizer", "model"]


class ModelShape(StrictModel):
    """A Llama decoder trained from scratch. The vocabulary's size comes from the tokenizer."""

    hidden_size: int = Field(192, ge=8)
    intermediate_size: int = Field(512, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(6, ge=1)
    key_value_heads: int = Field(3, ge=1)
    context: int = Field(512, ge=16, description="longest sequence in tokens")
    tie_embeddings: bool = True
    initial_range: float = Field(0.02, gt=0, description="standard deviation of the initial weights")

    @model_validator(mode="after")
    def _divides(self) -> "ModelShape":
        if self.hidden_size % (2 * self.heads) or self.heads % self.key_value_heads:
            raise ValueError("hidden_size must be an even multiple of heads, and heads a multiple of key_value_heads")
        return self


class Optimizer(StrictModel):
    """AdamW with warm-up and cosine decay (Loshchilov & Hutter 2017)."""

    learning_rate: float = Field(gt=0, le=1, description="peak, reached at the end of the warm-up")
    final_share: float = Field(0.1, ge=0, le=1, description="last learning rate as a share of the peak")
    warmup_steps: int = Field(10, ge=0)
    weight_decay: float = Field(0.1, ge=0, description="on matrices; never on norms")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip_norm: float = Field(1.0, gt=0, description="global gradient norm is clipped to this")


class StageConfig(StrictModel):
    """What every stage has. `consumes`: the roles of parent artifacts; `data`: corpora that it reads."""

    consumes: ClassVar[tuple[Role, ...]] = ()
    data: ClassVar[tuple[str, ...]] = ()

    name: str = Field(pattern=r"^[a-z][a-z0-9_.]*$")
    seed: int = Field(0, ge=0, lt=2**31)


class TrainedStage(StageConfig):
    """A stage that updates weights: how long, in what portions, on how many processes.

    One step takes processes x accumulation x micro_batch sequences.
    """

    processes: int = Field(2, ge=1)
    threads: int = Field(1, ge=1, description="of each process; another number may change the last bits of a loss")
    micro_batch: int = Field(4, ge=1, description="sequences of one forward pass on one process")
    accumulation: int = Field(1, ge=1, description="forward passes of one process before a step")
    steps: int = Field(ge=1, description="most optimizer steps")
    epochs: float = Field(4.0, gt=0, description="most passes over the data")
    checkpoint_every: int = Field(20, ge=1, description="steps between two checkpoints")
    optimizer: Optimizer

    @property
    def sequences_per_step(self) -> int:
        return self.processes * self.accumulation * self.micro_batch


class TokenizerStage(StageConfig):
    """Byte-level BPE trained on the corpus, and the corpus as packed token shards."""

    data: ClassVar[tuple[str, ...]] = ("corpus",)

    kind: Literal["tokenizer"]
    vocab_size: int = Field(8192, ge=300, le=2**20)
    sample_bytes: int = Field(16_000_000, ge=1, description="about how much text the merges are learnt from")
    sequence_length: int = Field(512, ge=16)
    heldout_share: float = Field(0.01, gt=0, lt=1, description="share of documents, chosen by doc_id")


class PretrainStage(TrainedStage):
    """A causal language model from scratch on the token shards."""

    consumes: ClassVar[tuple[Role, ...]] = ("tokenizer",)

    kind: Literal["pretrain"]
    model: ModelShape = ModelShape()


class SftStage(TrainedStage):
    """Instruction tuning: loss on the assistant's tokens alone, under the tokenizer's chat template."""

    consumes: ClassVar[tuple[Role, ...]] = ("model",)
    data: ClassVar[tuple[str, ...]] = ("instructions",)

    kind: Literal["sft"]
    sequence_length: int = Field(512, ge=16, description="conversations are packed into this many tokens")
    heldout_share: float = Field(0.05, gt=0, lt=1, description="share of records, chosen by their content's hash")
    max_records: int = Field(20_000, ge=1, description="most records, chosen by their content's hash")


Stage = Annotated[TokenizerStage | PretrainStage | SftStage, Field(discriminator="kind")]
PROVIDES: dict[str, tuple[Role, ...]] = {"tokenizer": ("tokenizer",), "pretrain": ("model",), "sft": ("model",)}


class Recipe(StrictModel):
    """An ordered cascade of stages."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
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

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises ConfigError that lists the names there are."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise ConfigError(f"recipe {self.name}: no stage '{name}'; there are: {', '.join(s.name for s in self.stages)}")

    def parents(self, name: str) -> dict[Role, str]:
        """Role → name of the nearest earlier stage that provides it."""
        stage = self.stage(name)
        earlier = self.stages[: self.stages.index(stage)]
        found: dict[Role, str] = {}
        for role in stage.consumes:
            givers = [item.name for item in earlier if role in PROVIDES[item.kind]]
            if not givers:
                raise ValueError(f"stage '{name}' ({stage.kind}) needs a {role}, but no earlier stage makes one")
            found[role] = givers[-1]
        return found


def load_recipe(name_or_path: str) -> Recipe:
    """A recipe by its name in data_contracts/recipes, or by path.

    Raises ConfigError naming the file and the key; an unknown key is answered with the nearest known one.
    """
    return load_yaml(Recipe, named_file("recipes", name_or_path))
