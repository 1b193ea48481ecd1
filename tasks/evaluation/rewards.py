"""What a reward model is worth: pairs put in order, how sure it may be, and what it looks at besides the content."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.corpus.artifact import Artifact
from tasks.training.plan import StageSpec
from tasks.training.recipe import RewardStage

if TYPE_CHECKING:
    from tasks.training.preferences.pairs import Pair

RESAMPLES = 1000
BINS = 10  # of calibration
# Marks of format: lists, headings, tables, bold, code.
MARKS = re.compile(r"^\s*(?:[-*•]|\d+[.、)]|#{1,6}\s)|\*\*|```|^\s*\|", re.MULTILINE)


def measure_reward(spec: StageSpec, artifact: Artifact, folder: Path, scratch: Path) -> dict[str, Any]:
    """Held-out pairs under the reward model: accuracy with its interval, calibration, length and format bias.

    `before` is what always choosing the longer answer would get, which no model of content should fall behind.
    """
    from tasks.tokens.tokenizer import load_tokenizer
    from tasks.training.preferences.packing import pack_pairs
    from tasks.training.preferences.pairs import read_preferences
    from tasks.training.reward_model import load_reward_model, scores

    config = spec.config
    assert isinstance(config, RewardStage)
    tokenizer, criteria = load_tokenizer(folder), list(config.criteria)
    read = read_preferences(spec.data["preferences"].uri, domain=config.domain, heldout_share=config.heldout_share)
    packed = pack_pairs(read.splits["heldout"], tokenizer, criteria, config.sequence_length, Counter())
    answers = [answer for both in packed.encoded for answer in both]
    found = scores(load_reward_model(folder), answers)
    heads = packed.heads.numpy()
    own = found[np.arange(len(answers)), np.repeat(heads, 2)]
    difference = (own[::2] - own[1::2]).astype(float)
    decided = np.array([not pair.tie for pair in packed.pairs])
    pairs, difference, heads = [p for p in packed.pairs if not p.tie], difference[decided], heads[decided]
    result = pair_metrics(pairs, difference)
    return {
        **artifact.metrics,
        "tokens": artifact.metrics["train_tokens"],
        **result,
        "heldout_ties": int((~decided).sum()),
        "accuracy_by_criterion": {
            name: float((difference[heads == number] > 0).mean())
            for number, name in enumerate(criteria)
            if (heads == number).any()
        },
        "measure": f"{'synthetic ' if artifact.metrics['synthetic_share'] > 0.5 else ''}pairs put in order "
        "(before: always the longer answer)",
        "before": result["longer_is_better"],
        "after": result["accuracy"],
    }


def pair_metrics(pairs: "list[Pair]", difference: np.ndarray) -> dict[str, Any]:
    """Figures of decided pairs, and the scores of the better answers less those of the worse, (pairs,)."""
    right = (difference > 0) + 0.5 * (difference == 0)
    low, high = interval(right, [pair.prompt_id for pair in pairs])
    longer = np.array([len(pair.chosen) - len(pair.rejected) for pair in pairs], float)
    marked = np.array([_marks(pair.chosen) - _marks(pair.rejected) for pair in pairs], float)
    return {
        "heldout_pairs": len(pairs),
        "accuracy": float(right.mean()),
        "accuracy_low": low,
        "accuracy_high": high,
        "reward_loss": float(np.logaddexp(0, -difference).mean()),
        "calibration_error": calibration_error(difference),
        "longer_is_better": float(((longer > 0) + 0.5 * (longer == 0)).mean()),
        "accuracy_when_shorter_is_better": _share(right[longer < 0]),
        "accuracy_when_longer_is_better": _share(right[longer > 0]),
        "length_correlation": correlation(difference, longer),
        "format_correlation": correlation(difference, marked),
    }


def interval(right: np.ndarray, prompts: list[str], seed: int = 0) -> tuple[float, float]:
    """The middle 95% of the mean under a bootstrap over prompts: pairs of one prompt are not independent."""
    _, owner = np.unique(prompts, return_inverse=True)
    sums, counts = np.bincount(owner, weights=right), np.bincount(owner)
    draws = np.random.default_rng(seed).integers(len(sums), size=(RESAMPLES, len(sums)))
    low, high = np.quantile(sums[draws].sum(1) / counts[draws].sum(1), [0.025, 0.975])
    return float(low), float(high)


def calibration_error(difference: np.ndarray) -> float:
    """Expected calibration error (Naeini et al. 2015) of σ(Δ): how far confidence and accuracy lie apart, in [0, 1].

    Every pair is looked at from the side that the model prefers, so confidences are at least ½.
    """
    confidence = 1 / (1 + np.exp(-np.abs(difference)))
    right = (difference > 0) + 0.5 * (difference == 0)
    place = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    bins = [place == number for number in np.unique(place)]
    return float(sum(abs(confidence[some].mean() - right[some].mean()) * some.mean() for some in bins))


def correlation(difference: np.ndarray, other: np.ndarray) -> float:
    """How far the model's preference goes with another difference of the answers, in [−1, 1]; 0 when nothing varies.

    Without centring: which answer comes first is arbitrary, so means have no meaning.
    """
    norms = float(np.linalg.norm(difference) * np.linalg.norm(other))
    return float(difference @ other) / norms if norms else 0.0


def _share(right: np.ndarray) -> float | None:
    return float(right.mean()) if len(right) else None


def _marks(text: str) -> int:
    return len(MARKS.findall(text))
