"""Stage *sft*: a model and instruction records → a model that answers. The loss sees the assistant's tokens alone."""

import shutil

from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.context import Context
from tasks.training.data import Loader
from tasks.training.engine import Engine, join_ranks
from tasks.training.instructions import pack_conversations, read_instructions
from tasks.training.loop import train
from tasks.training.losses import causal_loss
from tasks.training.model import export_model, load_model
from tasks.training.recipe import SftStage


def run(context: Context) -> None:
    """Tune the parent on packed conversations, gather the weights, export and publish."""
    config = context.spec.config
    assert isinstance(config, SftStage)
    join_ranks(context)

    parent = context.parent("model")
    tokenizer = load_tokenizer(parent)
    records = read_instructions(context.spec.data["instructions"].uri, config)
    source = pack_conversations(records.splits["train"], tokenizer, config.sequence_length, records.counts)
    loader = Loader(source, config, rank=context.rank, pad=tokenizer.pad_token_id)

    model = load_model(parent)
    engine = Engine(model, config)
    train(context, engine, loader, causal_loss)

    state = engine.gather()
    if context.first:
        shutil.rmtree(context.output, ignore_errors=True)
        export_model(state, model, tokenizer, context.output)
        context.publish("model", {**context.summary(), "records": dict(records.counts)})
