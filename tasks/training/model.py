"""Models: a Llama from scratch, one loaded strictly, and one exported so that it reloads to the bit."""

from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from tasks.errors import DataError
from tasks.tokens.tokenizer import TURN_END
from tasks.training.recipe import ModelShape


def new_model(shape: ModelShape, tokenizer: Any, seed: int) -> LlamaForCausalLM:
    """A Llama with random FP32 weights: the same seed, the same weights, on every rank."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=shape.tie_embeddings,
            initializer_range=shape.initial_range,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    initialize(model, shape)
    return model


@torch.no_grad()
def initialize(model: PreTrainedModel, shape: ModelShape) -> None:
    """Draw or scale the matrices of the layers again as the recipe says.

    *xavier*: standard deviation √(2 / (inputs + outputs)). *depth*: what is added to the residual stream is divided by
    √(2 · layers), as in GPT-2. *deepnorm*: values, attention's output and the MLP are multiplied by (8 · layers)^-¼,
    the gain for decoders of Wang et al. 2022; their up-scaled skip is left out, because the layers are pre-norm and a
    factor there would only scale the stream that the next norm divides out.
    """
    outputs, inner = ("o_proj", "down_proj"), ("v_proj", "gate_proj", "up_proj")
    gain = {"none": 1.0, "depth": (2 * shape.layers) ** -0.5, "deepnorm": (8 * shape.layers) ** -0.25}
    scaled = {"none": (), "depth": outputs, "deepnorm": outputs + inner}[shape.residual_scaling]
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        if shape.initialization == "xavier":
            torch.nn.init.xavier_normal_(module.weight)
        if name.rpartition(".")[2] in scaled:
            module.weight.mul_(gain[shape.residual_scaling])


def load_model(folder: Path | str, auto: Any = AutoModelForCausalLM) -> PreTrainedModel:
    """The FP32 model in a folder, a causal one unless `auto` says otherwise; never asks the network or unpickles.

    Raises DataError when a weight is missing, unexpected or of another shape: transformers would only warn, and go on
    with random numbers.
    """
    logging.disable_progress_bar()  # for a few files on disk it is only noise in the log
    loaded: Any = auto.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported like the others, and refused below
    )
    model, report = loaded
    wrong = {name: sorted(map(str, items)) for name, items in report.items() if items}
    if wrong:
        raise DataError(f"{folder}: its weights do not fit its configuration: {wrong}")
    return cast(PreTrainedModel, model)


def export_model(state: dict[str, torch.Tensor], like: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Write weights (safetensors), configuration and tokenizer, reload them, and compare every weight bit for bit.

    `state` holds full weights by name (tied ones once); `like` is any model of the same configuration. Raises
    DataError when what was read back differs, or the tokenizer has tokens that the model has no embedding for.
    """
    rows = like.get_input_embeddings().num_embeddings  # type: ignore[operator]
    if len(tokenizer) > rows:
        raise DataError(
            f"{folder}: the tokenizer has {len(tokenizer):,} tokens, the model embeddings for {rows:,}; resize them"
        )
    model = type(like)(like.config)
    lacking = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    if lacking.unexpected_keys or set(lacking.missing_keys) - tied:
        raise DataError(f"{folder}: gathered weights do not fit the model: {lacking}")
    model.tie_weights()
    turn_end = tokenizer.get_vocab().get(TURN_END)  # a base model from elsewhere may have none of that name
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, *([turn_end] if turn_end is not None else [])],
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = load_model(folder).state_dict()
    for name, weight in model.state_dict().items():
        if name not in again or not torch.equal(again[name].view(torch.uint8), weight.contiguous().view(torch.uint8)):
            raise DataError(f"{folder}: weight {name} is not what was saved; do not use this export")
