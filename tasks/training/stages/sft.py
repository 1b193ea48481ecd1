"""Stage *sft*: a model and instruction records → a model that answers. The loss sees the assistant's tokens alone."""

import shutil
from collections import Counter
from typing import Any

import torch

from tasks.corpus.artifact import read_artifact
from tasks.errors import DataError
from tasks.tokens.shards import TokenShards
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.adapters import export_adapted, with_adapters
from tasks.training.augmentation import augmented
from tasks.training.companions import DynamicCurriculum, HeldOut
from tasks.training.context import Context
from tasks.training.data import Source
from tasks.training.engine import Engine, join_ranks
from tasks.training.instructions import Conversation, grouped, pack_conversations, read_instructions
from tasks.training.loop import Companion, train
from tasks.training.model import export_model, load_model
from tasks.training.peak import rate_share, with_peak
from tasks.training.recipe import TuningStage
from tasks.training.sampling import REPLAY, Joined, TuningLoader, WeightedOrder, replay_source, weights_of
from tasks.training.unfreezing import ProgressiveUnfreezing, unit_of


def run(context: Context) -> None:
    """Tune the parent on packed conversations and replayed documents, keep the best, export and publish."""
    assert isinstance(context.spec.config, TuningStage)
    join_ranks(context)

    parent, ancestor = context.parent("model"), read_artifact(context.spec.parents["model"].uri)
    config = with_peak(context.spec.config, ancestor)
    tokenizer = load_tokenizer(parent)
    records = read_instructions(context.spec.data["instructions"].uri, config)
    groups = grouped(records.splits, config)
    records.counts["outside_mixture"] = len(records.splits["train"]) - sum(map(len, groups["train"].values()))
    parts = training_parts(context, config, tokenizer, groups["train"], records.counts)
    source = Joined(parts)
    order = WeightedOrder(source, weights_of(parts, config), config.seed)
    loader = TuningLoader(
        source, config, rank=context.rank, pad=tokenizer.pad_token_id, world=context.ranks, order=order
    )

    model: Any = load_model(parent)
    if config.lora:
        model = with_adapters(model, config.lora, config.seed)
    engine = Engine(model, config, unit_of) if config.unfreezing else Engine(model, config)
    unseen = heldout_parts(config, tokenizer, groups["heldout"])
    heldout = HeldOut(unseen, config, rank=context.rank, pad=tokenizer.pad_token_id)
    companions: list[Companion] = [heldout]
    if config.curriculum:
        companions.append(DynamicCurriculum(config.curriculum, heldout, order))
    if config.unfreezing:
        companions.append(ProgressiveUnfreezing(config.unfreezing))
    checkpoints = train(context, engine, loader, companions, tokenizer.decode)
    last = max(heldout.losses)
    if heldout.best != last:
        checkpoints.load(heldout.best)

    state = engine.gather()
    if context.first:
        shutil.rmtree(context.output, ignore_errors=True)
        if config.lora:
            dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision]
            export_adapted(state, parent, ancestor.hash, config.lora, tokenizer, context.output, dtype)
        else:
            export_model(state, load_model(parent), tokenizer, context.output)
        context.publish(
            "model",
            {
                **context.summary(),
                "peak_learning_rate": config.optimizer.learning_rate,
                "parent_share": rate_share(config, ancestor),
                "records": dict(records.counts),
                "shares": loader.shares_of_tokens(last),
                "best_step": heldout.best,
                "stopped_early": heldout.done,
            },
        )


Groups = dict[str, list[Conversation]]


def training_parts(
    context: Context, config: TuningStage, tokenizer: Any, groups: Groups, counts: Counter[str]
) -> dict[str, Source]:
    """What is trained on, by name: groups of records, and replayed pretraining data."""
    length = config.sequence_length
    parts: dict[str, Source] = {
        name: pack_conversations(augmented(some, config.augmentation, config.seed), tokenizer, length, counts)
        for name, some in groups.items()
    }
    if config.replay:
        shards = TokenShards(context.parent("tokenizer") / "tokens", "train")
        parts[REPLAY] = replay_source(shards, len(tokenizer), length)
    return parts


def heldout_parts(config: TuningStage, tokenizer: Any, groups: Groups) -> dict[str, Source]:
    """Held-out records by the same groups; one that has none is left out."""
    if not groups:
        raise DataError(f"stage '{config.name}': no held-out record belongs to its mixture; add records")
    length, counts = config.sequence_length, Counter[str]()
    return {name: pack_conversations(some, tokenizer, length, counts) for name, some in groups.items()}
