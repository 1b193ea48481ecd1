"""A base model and its tokenizer from elsewhere, as the stages take them over: FP32 weights, nothing quantized."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from tasks.errors import ConfigError, DataError
from tasks.training.model import load_model
from tasks.training.origin import Origin


def base_tokenizer(folder: Path, origin: Origin, context: int) -> Any:
    """The base model's fast tokenizer. Documents end with `end_of_text`, whatever ends a turn of a conversation.

    Raises ConfigError when it lacks one of the two tokens that the recipe names.
    """
    logging.disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, **_gguf(origin))
    vocabulary = tokenizer.get_vocab()
    for name in ("end_of_text", "pad"):
        if getattr(origin, name) not in vocabulary:
            special = ", ".join(sorted(str(token) for token in tokenizer.added_tokens_decoder.values()))
            raise ConfigError(f"base model: its tokenizer has no {name} {getattr(origin, name)!r}; it has {special}")
    tokenizer.eos_token, tokenizer.pad_token = origin.end_of_text, origin.pad
    tokenizer.model_max_length = context
    return tokenizer


def base_model(folder: Path, origin: Origin) -> PreTrainedModel:
    """The base model. Raises DataError when its weights do not fit its configuration.

    A GGUF is de-quantized; transformers still calls such a model quantized, and will not save it, until its
    configuration no longer says so.
    """
    if not origin.gguf:
        return load_model(folder)
    logging.disable_progress_bar()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32, output_loading_info=True, **_gguf(origin)
    )
    model, report = loaded
    wrong = {name: sorted(map(str, items)) for name, items in report.items() if items}
    if wrong:
        raise DataError(f"{folder / origin.gguf}: its weights do not fit its configuration: {wrong}")
    del model.config.quantization_config
    return model


def _gguf(origin: Origin) -> dict[str, str]:
    return {"gguf_file": origin.gguf} if origin.gguf else {}
