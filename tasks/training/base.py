"""A base model and its tokenizer from elsewhere, as the stages take them over: FP32 weights, nothing quantized."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from tasks.errors import ConfigError, DataError
from tasks.training.model import load_model
from tasks.training.origin import Origin
from tasks.training.recipe import ModelShape


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


def base_shape(origin: Origin) -> tuple[ModelShape, int]:
    """Its shape, as a Llama's, and the size of its vocabulary, from its configuration alone. Raises ConfigError."""
    folder = origin.files()[0].parent
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **_gguf(origin))
    if config.model_type != "llama":
        raise ConfigError(f"{folder}: a base model of type {config.model_type}; only a Llama's size can be planned")
    shape = ModelShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        context=config.max_position_embeddings,
        tie_embeddings=config.tie_word_embeddings,
    )
    return shape, config.vocab_size


def _gguf(origin: Origin) -> dict[str, str]:
    return {"gguf_file": origin.gguf} if origin.gguf else {}
