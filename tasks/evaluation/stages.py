"""What a finished stage is worth: metrics before and after, written where its gate reads them."""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.corpus.storage import exists, fetch_folder, join, read_json, write_json
from tasks.errors import ConfigError
from tasks.tokens.documents import read_documents
from tasks.tokens.shards import TokenShards
from tasks.training.plan import StageSpec
from tasks.training.recipe import PretrainStage, SftStage, TokenizerStage

CODE_VERSION = 1  # raise by hand when a measure changes
SAMPLES = 3


def evaluate_stage(spec: StageSpec) -> dict[str, Any]:
    """Measure a stage's artifact and write STORE/evaluations/<artifact hash>/metrics.json; an earlier one is reused.

    Every kind has `measure`, `before` and `after`; losses are nats a token. Raises DataError when the artifact is not
    finished.
    """
    artifact = read_artifact(spec.artifact)
    where = join(spec.store, "evaluations", artifact.hash, "metrics.json")
    if exists(where):
        known = read_json(where)
        if known.get("code_version") == CODE_VERSION:
            return known
    with tempfile.TemporaryDirectory() as scratch:
        folder = fetch_folder(spec.artifact, Path(scratch) / "artifact")
        if isinstance(spec.config, TokenizerStage):
            metrics = _tokenizer(spec, folder)
        elif isinstance(spec.config, PretrainStage):
            metrics = _pretrain(spec, artifact, folder, Path(scratch))
        elif isinstance(spec.config, SftStage):
            metrics = _sft(spec, artifact, folder, Path(scratch))
        else:
            raise ConfigError(f"stage '{spec.stage}': nothing measures a stage of kind {spec.kind}")
    metrics |= {"schema_version": 1, "code_version": CODE_VERSION, "stage": spec.stage, "artifact": artifact.hash}
    write_json(where, metrics)
    return metrics


def _tokenizer(spec: StageSpec, folder: Path) -> dict[str, Any]:
    """Fertility, round trip, and counts read off the shards themselves."""
    from tasks.evaluation.fertility import fertility
    from tasks.tokens.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    shards = {split: TokenShards(folder / "tokens", split) for split in ("train", "heldout")}
    counts = shards["train"].counts() + shards["heldout"].counts()
    train, heldout = shards["train"].entry, shards["heldout"].entry
    bytes_per_token = (train.bytes + heldout.bytes) / int(counts.sum())
    return {
        **fertility(read_documents(spec.data["corpus"].uri), tokenizer),
        "vocab_size": len(tokenizer),
        "tokens": train.tokens,
        "heldout_tokens": heldout.tokens,
        "documents": train.documents + heldout.documents,
        "padding": int(counts[tokenizer.pad_token_id]),
        "unused_vocabulary": int((counts == 0).sum()),
        "bytes_per_token": round(bytes_per_token, 4),
        "measure": "bytes a token",
        "before": 1.0,
        "after": round(bytes_per_token, 4),
    }


def _pretrain(spec: StageSpec, artifact: Artifact, folder: Path, scratch: Path) -> dict[str, Any]:
    """Held-out loss beside a unigram model's on the same tokens, over all and by group."""
    from tasks.evaluation.heldout import heldout_losses, model_loss, unigram_loss
    from tasks.evaluation.samples import continuations
    from tasks.tokens.tokenizer import load_tokenizer
    from tasks.training.data import PackedDocuments
    from tasks.training.model import load_model

    parent = fetch_folder(spec.parents["tokenizer"].uri, scratch / "tokenizer") / "tokens"
    source, tokenizer, model = (
        PackedDocuments(TokenShards(parent, "heldout")),
        load_tokenizer(folder),
        load_model(folder),
    )
    losses = heldout_losses(source, tokenizer.pad_token_id, model_loss(model))
    unigram = heldout_losses(source, tokenizer.pad_token_id, unigram_loss(TokenShards(parent, "train").counts()))
    low, high = losses.interval()
    languages, kinds = (np.array(source.documents[name]) for name in ("language", "kind"))
    groups = np.where(kinds == "code", "code", languages)[: len(losses.tokens)]
    by_group = {str(name): losses.where(groups == name) for name in sorted(set(groups))}
    prompts = [source[i * len(source) // SAMPLES].ids[:16].tolist() for i in range(SAMPLES)]
    return {
        **artifact.metrics,
        "tokens": artifact.metrics["train_tokens"],
        "heldout_loss": losses.mean,
        "heldout_loss_low": low,
        "heldout_loss_high": high,
        "heldout_tokens": int(losses.tokens.sum()),
        "heldout_documents": int((losses.tokens > 0).sum()),
        "perplexity": math.exp(losses.mean),
        "unigram_loss": unigram.mean,
        "heldout_loss_by_group": {name: part.mean for name, part in by_group.items() if part.tokens.any()},
        "samples": continuations(model, tokenizer, prompts),
        "measure": "held-out loss, nats a token (before: unigram model)",
        "before": unigram.mean,
        "after": losses.mean,
    }


def _sft(spec: StageSpec, artifact: Artifact, folder: Path, scratch: Path) -> dict[str, Any]:
    """Held-out response loss beside the parent's on the same tokens, with the interval of the difference."""
    from tasks.evaluation.heldout import Losses, heldout_losses, model_loss
    from tasks.evaluation.samples import continuations
    from tasks.tokens.tokenizer import load_tokenizer
    from tasks.training.instructions import pack_conversations, read_instructions
    from tasks.training.model import load_model

    config = spec.config
    assert isinstance(config, SftStage)
    tokenizer = load_tokenizer(folder)
    records = read_instructions(spec.data["instructions"].uri, config)
    heldout = records.splits["heldout"]
    source = pack_conversations(heldout, tokenizer, config.sequence_length, records.counts)
    model, parent = load_model(folder), load_model(fetch_folder(spec.parents["model"].uri, scratch / "model"))
    after = heldout_losses(source, tokenizer.pad_token_id, model_loss(model))
    before = heldout_losses(source, tokenizer.pad_token_id, model_loss(parent))
    low, high = after.interval()
    gain_low, gain_high = Losses(before.sums - after.sums, after.tokens).interval()
    asked = [item.messages[:1] for item in heldout[:SAMPLES]]
    prompts: Any = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    return {
        **artifact.metrics,
        "heldout_loss": after.mean,
        "heldout_loss_low": low,
        "heldout_loss_high": high,
        "parent_heldout_loss": before.mean,
        "gain_low": gain_low,
        "gain_high": gain_high,
        "heldout_tokens": int(after.tokens.sum()),
        "heldout_records": int((after.tokens > 0).sum()),
        "samples": continuations(model, tokenizer, prompts),
        "parent_samples": continuations(parent, tokenizer, prompts),
        "measure": "held-out response loss, nats a token (before: parent)",
        "before": before.mean,
        "after": after.mean,
    }
