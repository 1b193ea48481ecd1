"""What learning from rewards was worth: reward on prompts that were held out, and what it cost elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.corpus.storage import fetch_folder
from tasks.evaluation.rewards import RESAMPLES
from tasks.evaluation.tuning import general
from tasks.training.plan import StageSpec
from tasks.training.recipe import RlhfStage

PROMPTS = 64  # held out, answered by both models
SEED = 20
SAMPLES = 3
LEARNT = ", learnt from synthetic pairs,"


def measure_policy(spec: StageSpec, artifact: Artifact, folder: Path, scratch: Path) -> dict[str, Any]:
    """Rewards of the policy's answers beside its parent's, with the interval of the difference over prompts; how far it
    has gone from the parent; general loss and refusals. Answers are drawn at the temperature of training."""
    from tasks.evaluation.safety import measure_safety
    from tasks.tokens.tokenizer import load_tokenizer
    from tasks.training.model import load_model
    from tasks.training.rl.prompts import read_prompts
    from tasks.training.rl.rollout import Sampler
    from tasks.training.rl.scoring import Scorer

    config = spec.config
    assert isinstance(config, RlhfStage)
    before = fetch_folder(spec.parents["model"].uri, scratch / "model")
    judges = {name: fetch_folder(spec.parents[name].uri, scratch / name) for name in config.reward_stages}
    criteria = {name: read_artifact(spec.parents[name].uri).metrics["criteria"] for name in judges}
    tokenizer = load_tokenizer(folder)
    scorer = Scorer(config, judges, criteria, tokenizer)
    prompts = read_prompts(spec.data["instructions"].uri, config, tokenizer)[0]["heldout"][:PROMPTS]

    found: dict[str, Any] = {}
    for name, where in (("policy", folder), ("parent", before)):
        sampler = Sampler(where, config.temperature, config.new_tokens)
        answers = sampler.draw([prompt.ids for prompt in prompts], SEED, config.micro_batch)
        ids = [answer.ids for answer in answers]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        found[name] = {"answers": answers, "texts": texts, "scores": scorer(prompts, ids, texts)}
    weights = np.array(list(config.rewards.values()))
    after, was = (found[name]["scores"] @ weights for name in ("policy", "parent"))
    low, high = _interval(after - was)
    model, parent = load_model(folder), load_model(before)
    safety, parent_safety = measure_safety(model, tokenizer), measure_safety(parent, tokenizer)
    asked = tokenizer.batch_decode([prompt.ids for prompt in prompts[:SAMPLES]])
    return {
        **artifact.metrics,
        "tokens": artifact.metrics["train_tokens"],
        "heldout_prompts": len(prompts),
        "heldout_reward": float(after.mean()),
        "parent_heldout_reward": float(was.mean()),
        "gain_low": low,
        "gain_high": high,
        "rewards": dict(zip(config.rewards, found["policy"]["scores"].mean(0).tolist(), strict=True)),
        "parent_rewards": dict(zip(config.rewards, found["parent"]["scores"].mean(0).tolist(), strict=True)),
        "heldout_kl": _divergence(model, parent, prompts, found["policy"]["answers"], config.temperature),
        "kl_bound": config.kl.bound,
        "answer_tokens": float(np.mean([len(answer.ids) for answer in found["policy"]["answers"]])),
        "parent_answer_tokens": float(np.mean([len(answer.ids) for answer in found["parent"]["answers"]])),
        "unended_share": float(np.mean([not answer.ended for answer in found["policy"]["answers"]])),
        **general(spec, model, parent, tokenizer, scratch),
        "harmful_refused": safety["harmful_refused"],
        "harmless_refused": safety["harmless_refused"],
        "parent_harmful_refused": parent_safety["harmful_refused"],
        "parent_harmless_refused": parent_safety["harmless_refused"],
        "refusals_lost": parent_safety["harmful_refused"] - safety["harmful_refused"],
        "safety_answers": safety["answers"],
        "samples": [{"prompt": a, "text": b} for a, b in zip(asked, found["policy"]["texts"], strict=False)],
        "parent_samples": [{"prompt": a, "text": b} for a, b in zip(asked, found["parent"]["texts"], strict=False)],
        "measure": f"reward{LEARNT if artifact.metrics['synthetic_share'] > 0.5 else ''} on held-out prompts "
        "(before: parent)",
        "before": float(was.mean()),
        "after": float(after.mean()),
    }


def _interval(gains: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The middle 95% of the mean gain under a bootstrap over prompts."""
    draws = np.random.default_rng(seed).integers(len(gains), size=(RESAMPLES, len(gains)))
    low, high = np.quantile(gains[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


@torch.inference_mode()
def _divergence(model: Any, parent: Any, prompts: Any, answers: Any, temperature: float) -> float:
    """KL(policy ‖ parent) in nats a token of the policy's own answers, over the whole distribution at every token."""
    total, tokens = 0.0, 0
    model.eval()
    parent.eval()
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt.ids, answer.ids]))[None]
        places = slice(len(prompt.ids) - 1, ids.shape[1] - 1)
        mine, other = (
            (some(ids, use_cache=False).logits[0, places].double() / temperature).log_softmax(-1)
            for some in (model, parent)
        )
        total += float((mine.exp() * (mine - other)).sum())
        tokens += len(answer.ids)
    return total / tokens
