"""Stage *pretrain*: token shards → a causal language model from scratch."""

import shutil

from tasks.tokens.shards import TokenShards
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.companions import HeldOut
from tasks.training.context import Context
from tasks.training.data import Loader, PackedDocuments
from tasks.training.engine import Engine, join_ranks
from tasks.training.loop import train
from tasks.training.mixture import MixedDocuments, MixedOrder
from tasks.training.model import export_model, new_model
from tasks.training.recipe import PretrainStage


def run(context: Context) -> None:
    """Train on packed documents, gather the weights, export and publish."""
    config = context.spec.config
    assert isinstance(config, PretrainStage)
    join_ranks(context)

    parent = context.parent("tokenizer")
    tokenizer = load_tokenizer(parent)
    shards = TokenShards(parent / "tokens", "train")
    source = MixedDocuments(shards, config.mixture) if config.mixture else PackedDocuments(shards)
    order = MixedOrder(source, config.seed) if isinstance(source, MixedDocuments) else None
    loader = Loader(source, config, rank=context.rank, world=context.ranks, pad=tokenizer.pad_token_id, order=order)

    model = new_model(config.model, tokenizer, config.seed)
    parameters, peak = model.num_parameters(), config.optimizer.learning_rate
    engine = Engine(model, config)
    heldout = PackedDocuments(TokenShards(parent / "tokens", "heldout"))
    watch = HeldOut({"documents": heldout}, config, rank=context.rank, pad=tokenizer.pad_token_id)
    companions = [watch] if config.heldout_sequences else []
    checkpoints = train(context, engine, loader, companions, tokenizer.decode)
    if config.patience is not None and watch.best != max(watch.losses):
        checkpoints.load(watch.best)

    state = engine.gather()
    if context.first:
        shutil.rmtree(context.output, ignore_errors=True)
        export_model(state, model, tokenizer, context.output)
        context.publish("model", {**context.summary(), "parameters": parameters, "peak_learning_rate": peak})
