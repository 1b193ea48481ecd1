"""Normalisation Chinese words, and the look of program text."""

import os
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

_CODE_LINE = re.compile(
    r"^\s*(?:def |class |import |from \S+ import |#include|#define|function |var |let |const |public |private "
    r"|return\b|if\s*\(|for\s*\(|while\s*\(|@\w+|</?\w+[ >]|\}|elif |else:|try:|except\b)"
    r"|[;{}]\s*$|\)\s*:\s*$|^\s*\w+ = "
)


def normalise(text: str) -> str:
    """What is kept: Unicode NFC (never NFKC, which changes meaning), no byte-order mark, `\\n` line ends."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def chinese_words(text: str) -> list[str]:
    """Words and marks of a Chinese text, by jieba's dictionary without its hidden Markov model; no white space."""
    return [word for word in _segmenter().lcut(text, HMM=False) if not word.isspace()]


def looks_like_code(text: str) -> bool:
    """Whether at least 4 in 10 of the first 200 lines that are not blank have the form of program text."""
    lines = [line for line in text[:20_000].split("\n") if line.strip()][:200]
    if len(lines) < 5:
        return False
    return sum(_CODE_LINE.search(line) is not None for line in lines) >= 0.4 * len(lines)


@cache
def _segmenter() -> Any:
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)
    # jieba keeps a marshalled cache; in a shared /tmp anybody could plant one.
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "athanor"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    jieba.dt.tmp_dir = str(folder)
    return jieba.dt
