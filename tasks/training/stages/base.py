"""Stage *base*: a pretrained model from elsewhere → an artifact that later stages tune like one of our own."""

import shutil
import time
from pathlib import Path

from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.base import base_model
from tasks.training.context import Context
from tasks.training.model import export_model
from tasks.training.recipe import BaseStage


def run(context: Context) -> None:
    """Load, export with the tokenizer that the corpus was encoded with, publish."""
    config = context.spec.config
    assert isinstance(config, BaseStage)
    shutil.rmtree(context.output, ignore_errors=True)
    context.rewind(0)
    start = time.monotonic()
    model = base_model(Path(context.spec.data["base"].uri), config.base)
    tokenizer = load_tokenizer(context.parent("tokenizer"))
    parameters = model.num_parameters()
    context.report(step=1, steps=2, what=f"{parameters:,} parameters read")
    export_model(model.state_dict(), model, tokenizer, context.output)
    context.report(step=2, steps=2, what="written and read back")
    metrics = {"parameters": parameters, "train_tokens": 0, "seconds": round(time.monotonic() - start, 1)}
    known = {"peak_learning_rate": config.peak_learning_rate} if config.peak_learning_rate else {}
    context.publish("model", metrics | known)
