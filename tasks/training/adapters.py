"""LoRA adapters (Hu et al. 2021, through peft): put on, written apart, and merged to the same weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tasks.errors import DataError
from tasks.training.model import export_model, load_model
from tasks.training.tuning import Lora

ADAPTER = "adapter"  # folder inside the model's
SAFE_WEIGHTS = "adapter_model.safetensors"


def with_adapters(model: PreTrainedModel, config: Lora, seed: int) -> Any:
    """The model under adapters that change nothing yet; its own weights are frozen. The same on every rank."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    return get_peft_model(
        model,
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type]
            lora_dropout=config.dropout,
            target_modules=sorted(config.targets) or "all-linear",
            task_type="CAUSAL_LM",
        ),
    )


def export_adapted(
    state: dict[str, torch.Tensor],
    parent: Path,
    parent_hash: str,
    config: Lora,
    tokenizer: Any,
    folder: Path,
    trained_in: torch.dtype = torch.float32,
) -> None:
    """Write the merged model to `folder` and the adapters alone to `folder`/adapter.

    `state` holds the full weights by name, the frozen ones too, which were in `trained_in` during training. Raises
    DataError when a frozen weight is not the parent's to the bit, or the adapters, read back and merged into the
    parent, do not give the merged model to the bit.
    """
    model = with_adapters(load_model(parent), config, seed=0)
    ours = model.state_dict()
    for name, weight in ours.items():
        if "lora_" not in name and name in state and not _same(weight.to(trained_in).float(), state[name]):
            raise DataError(f"{folder}: weight {name} was frozen, but is not the parent's any more")
    adapters = {name: weight for name, weight in state.items() if "lora_" in name}
    if not state.keys() <= ours.keys() or adapters.keys() != {name for name in ours if "lora_" in name}:
        raise DataError(f"{folder}: gathered weights do not fit the model with adapters: {sorted(adapters)[:5]}…")
    model.load_state_dict(adapters, strict=False)
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    _save(model, folder / ADAPTER, parent_hash)
    merged = model.merge_and_unload()
    export_model(merged.state_dict(), merged, tokenizer, folder)
    again = merged_from(parent, folder / ADAPTER).state_dict()
    for name, weight in merged.state_dict().items():
        if not _same(again[name], weight):
            raise DataError(f"{folder}: adapters read back give another {name} than the merged model has")


def merged_from(parent: Path, adapter: Path) -> Any:
    """The parent with the adapters of a folder merged into its weights.

    Raises DataError when there is no safetensors file (a pickled one is never opened), or its weights are not those
    of the adapters that the configuration describes: peft would leave out what is missing.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

    path = adapter / SAFE_WEIGHTS
    if not path.exists():
        raise DataError(f"{adapter}: no {SAFE_WEIGHTS}; adapters are read from safetensors alone")
    model: Any = get_peft_model(load_model(parent), PeftConfig.from_pretrained(str(adapter)))
    found: Any = set_peft_model_state_dict(model, load_file(path))
    missing = sorted(name for name in found.missing_keys if "lora_" in name)
    if missing or found.unexpected_keys:
        raise DataError(
            f"{path}: its weights do not fit {adapter.name}/adapter_config.json; missing: {missing[:5]}, "
            f"unexpected: {sorted(found.unexpected_keys)[:5]}"
        )
    return model.merge_and_unload()


def _save(model: Any, folder: Path, parent_hash: str) -> None:
    """Adapters and their configuration, the same bytes each time; the base model is named by its hash."""
    model.save_pretrained(str(folder), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = parent_hash
    config = {name: sorted(value) if isinstance(value, list) else value for name, value in config.items()}
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.contiguous().view(torch.uint8), other.view(torch.uint8))
