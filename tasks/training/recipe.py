"""Recipes: a cascade of training stages as typed YAML (`data_contracts/recipes/*.yaml`).

Light on purpose: a DAG is drawn from a recipe at parse time, so nothing here imports torch.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.errors import ConfigError
from tasks.settings import StrictModel, load_yaml, named_file
from tasks.training.origin import Origin
from tasks.training.parallel import Parallel
from tasks.training.preferences.records import OVERALL
from tasks.training.tuning import USUAL_EPOCHS, USUAL_SHARE, Augmentation, Curriculum, Lora, Mixture, Unfreezing

Role = Literal["tokenizer", "model", "reward"]
Fp32Operation = Literal["attention", "mlp", "logits"]


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
    initialization: Literal["normal", "xavier"] = Field(
        "normal", description="of matrices: one standard deviation for all, or by their size (Glorot & Bengio 2010)"
    )
    residual_scaling: Literal["none", "depth", "deepnorm"] = Field(
        "none", description="smaller initial weights on what is added to the residual stream, by the number of layers"
    )

    @model_validator(mode="after")
    def _divides(self) -> "ModelShape":
        if self.hidden_size % (2 * self.heads) or self.heads % self.key_value_heads:
            raise ValueError("hidden_size must be an even multiple of heads, and heads a multiple of key_value_heads")
        return self


class Optimizer(StrictModel):
    """AdamW (Loshchilov & Hutter 2017) with warm-up, then half a cosine, or a plateau and a decay (WSD), or neither."""

    learning_rate: float = Field(gt=0, le=1, description="peak, reached at the end of the warm-up")
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay_share: float = Field(0.2, gt=0, le=1, description="of WSD: share of the steps over which the rate falls")
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


class Rollback(StrictModel):
    """When a step counts as a spike, and what then happens: back to a checkpoint, past the data, at a lower rate."""

    most: int = Field(3, ge=0, description="rollbacks of one run; another spike fails it. 0: a spike fails it at once")
    history: int = Field(32, ge=8, description="steps that tell what is usual; no judgement before half of them")
    loss_z: float = Field(8.0, gt=0, description="robust z-score (median, MAD) above which a loss is a spike")
    gradient_z: float = Field(12.0, gt=0, description="the same for the logarithm of the gradient norm")
    margin: int = Field(1, ge=0, description="windows of data before the spike's that are skipped with it")
    rate_factor: float = Field(0.8, gt=0, le=1, description="learning rate from then on, as a share of what it was")


class TrainedStage(StageConfig):
    """A stage that updates weights: how long, in what portions, on how many processes.

    One step takes processes x accumulation x micro_batch sequences, or `batch_tokens` tokens.
    """

    processes: int = Field(2, ge=1)
    threads: int = Field(1, ge=1, description="of each process; another number may change the last bits of a loss")
    micro_batch: int = Field(4, ge=1, description="sequences of one forward pass on one process")
    accumulation: int = Field(1, ge=1, description="forward passes of one process before a step")
    batch_tokens: int | None = Field(
        None, ge=1, description="tokens of one step over all processes, in whole sequences; instead of `accumulation`"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="of weights in use; masters stay FP32")
    fp32_operations: tuple[Fp32Operation, ...] = Field((), description="computed in FP32 whatever the precision")
    activation_checkpointing: bool = Field(False, description="compute activations again instead of keeping them")
    dropout: float = Field(0.0, ge=0, lt=1)
    rollback: Rollback = Rollback()
    parallel: Parallel | None = Field(None, description="layout on GPUs; none: ZeRO-3 over `processes` on the CPU")
    keep_checkpoints: int = Field(2, ge=1, description="older ones are deleted")
    steps: int = Field(ge=1, description="most optimizer steps")
    epochs: float = Field(4.0, gt=0, description="most passes over the data")
    checkpoint_every: int = Field(20, ge=1, description="steps between two checkpoints")
    optimizer: Optimizer

    @model_validator(mode="after")
    def _one_batch_size(self) -> "TrainedStage":
        if self.batch_tokens is not None and self.accumulation != 1:
            raise ValueError("batch_tokens says how much a step takes, so accumulation must not; leave one of them out")
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> "TrainedStage":
        if self.parallel and self.processes % self.parallel.model_ranks:
            raise ValueError(
                f"processes {self.processes} must be a multiple of tensor x sequence x pipeline "
                f"({self.parallel.model_ranks}); the rest is data parallel"
            )
        return self

    def sequences_per_step(self, length: int) -> int:
        """Sequences of `length` tokens that one step takes over all processes."""
        if self.batch_tokens is not None:
            return max(1, self.batch_tokens // length)
        replicas = self.processes // (self.parallel.model_ranks if self.parallel else 1)
        return replicas * self.accumulation * self.micro_batch


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


class RlhfStage(TrainedStage):
    """Reinforcement learning from rewards: PPO (Schulman et al. 2017) or GRPO (Shao et al. 2024). A step is one round:
    answers drawn, scored, and learnt from `updates` times."""

    consumes: ClassVar[tuple[Role, ...]] = ("model",)
    data: ClassVar[tuple[str, ...]] = ("instructions",)

    kind: Literal["rlhf"]
    optimizer: TuningOptimizer
    method: Literal["ppo", "grpo"] = "ppo"
    rewards: dict[str, float] = Field(
        min_length=1, description="weight by name: of an earlier reward stage, or `exact_answer`"
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
    reward_clip: float = Field(5.0, gt=0, description="normalised rewards are cut at ± this")
    unended: float = Field(0.0, ge=0, description="taken off the reward of an answer that reached new_tokens")
    heldout_share: float = Field(0.1, gt=0, lt=1, description="share of prompts, chosen by their hash")
    max_records: int = Field(20_000, ge=1)
    unusual: bool = Field(False, description="a temperature outside 0.7-0.9 is meant")

    @model_validator(mode="after")
    def _fits(self) -> "RlhfStage":
        if self.method == "grpo" and self.samples < 2:
            raise ValueError("grpo compares answers to the same prompt; samples must be 2 or more")
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


Stage = Annotated[
    TokenizerStage | BaseStage | PretrainStage | SftStage | AdaptStage | RewardStage | RlhfStage,
    Field(discriminator="kind"),
]
FUNCTIONS = ("exact_answer",)  # rewards that need no model
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
