"""What a finished stage is worth: metrics before and after, written where its gate reads them."""

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.corpus.storage import exists, fetch_folder, join, read_json, write_json
from tasks.errors import ConfigError
from tasks.evaluation.policies import measure_policy
from tasks.evaluation.report import write_report
from tasks.evaluation.rewards import measure_reward
from tasks.evaluation.tuning import measure_tuning
from tasks.tokens.documents import read_documents
from tasks.tokens.shards import TokenShards
from tasks.training.plan import StageSpec
from tasks.training.recipe import BaseStage, PretrainStage, RewardStage, RlhfStage, TokenizerStage, TuningStage

if TYPE_CHECKING:
    from tasks.evaluation.heldout import Losses

CODE_VERSION = 4  # raise by hand when a measure changes
SAMPLES = 3


def evaluate_stage(spec: StageSpec) -> dict[str, Any]:
    """Measure a stage's artifact and write STORE/evaluations/<artifact hash>/metrics.json, and a report of the stage
    for a person beside it; an earlier one is reused.

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
        elif isinstance(spec.config, PretrainStage | BaseStage):
            metrics = _pretrain(spec, artifact, folder, Path(scratch))
        elif isinstance(spec.config, TuningStage):
            metrics = measure_tuning(spec, artifact, folder, Path(scratch))
        elif isinstance(spec.config, RewardStage):
            metrics = measure_reward(spec, artifact, folder, Path(scratch))
        elif isinstance(spec.config, RlhfStage):
            metrics = measure_policy(spec, artifact, folder, Path(scratch))
        else:
            raise ConfigError(f"stage '{spec.stage}': nothing measures a stage of kind {spec.kind}")
    if "samples" in metrics:
        metrics["symptoms"] = _symptoms(spec, metrics)
    metrics |= {"schema_version": 1, "code_version": CODE_VERSION, "stage": spec.stage, "artifact": artifact.hash}
    write_report(spec, metrics)
    write_json(where, metrics)
    return metrics


def _symptoms(spec: StageSpec, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """What the figures and samples show to be wrong, as events for a person; gates decide on the figures themselves."""
    from tasks.evaluation.outputs import output_symptoms

    mixture = spec.config.mixture if isinstance(spec.config, TuningStage) else None
    return [found.model_dump() for found in output_symptoms(metrics, mixture.shares if mixture else None)]


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
    sources = np.array(source.documents["source"])[: len(losses.tokens)]
    by_source = _means(losses, sources)
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
        "heldout_loss_by_group": _means(losses, groups),
        "heldout_loss_by_source": by_source,
        "perplexity_by_source": {name: math.exp(mean) for name, mean in by_source.items()},
        "samples": continuations(model, tokenizer, prompts),
        "measure": "held-out loss, nats a token (before: unigram model)",
        "before": unigram.mean,
        "after": losses.mean,
    }


def _means(losses: "Losses", names: np.ndarray) -> dict[str, float]:
    """Nats a token of the units of each name; `names` is (units,)."""
    parts = {str(name): losses.where(names == name) for name in sorted(set(names))}
    return {name: part.mean for name, part in parts.items() if part.tokens.any()}
