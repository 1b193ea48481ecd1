"""Code points and their classes, as arrays that compiled loops read."""

import re
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np

from tasks.curation.text.table_cache import Tables, cached_tables

# Scripts written without spaces: Han with extensions, kana, Thai, Lao, Khmer, Myanmar.
UNSPACED_RANGES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
TERMINAL_MARKS = ".!?\"'…。！？”’」』；;"
PUNCTUATION_MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~。，、；：？！…—·「」『』（）《》〈〉【】“”‘’–•"

WORD = 1  # \w: letters, digits, underscore
UNSPACED = 2  # of a script without spaces
SPACE = 4
ALPHANUMERIC = 8
LETTER = 16
DIGIT = 32
PUNCTUATION = 64
TERMINAL = 128  # ends a sentence or a quotation

SEVERAL = 0xFFFFFFFF


@cache
def _tables() -> Tables:
    built_from = Path(__file__).read_bytes() + unicodedata.unidata_version.encode()
    return cached_tables("code-points", built_from, lambda: {"classes": _classes(), **_cases()})


def classes() -> np.ndarray:
    """The classes of every code point as a sum of flags, shape (0x110000,), uint8."""
    return _tables()["classes"]


def lower_case() -> np.ndarray:
    """The lower case of every code point, where that is one code point, shape (0x110000,), uint32."""
    return _tables()["lower"]


def _classes() -> np.ndarray:
    points = "".join(map(chr, range(0x110000)))
    table = np.zeros(len(points), dtype=np.uint8)
    patterns = {r"\w+": WORD, f"[{UNSPACED_RANGES}]+": UNSPACED, r"\s+": SPACE}
    for pattern, flag in patterns.items():
        for match in re.finditer(pattern, points):
            table[match.start() : match.end()] |= flag
    words = np.flatnonzero(table & WORD).tolist()  # the tests below hold for none but these
    for test, flag in ((str.isalnum, ALPHANUMERIC), (str.isalpha, LETTER), (str.isdigit, DIGIT)):
        table[[point for point in words if test(points[point])]] |= flag
    for marks, flag in ((PUNCTUATION_MARKS, PUNCTUATION), (TERMINAL_MARKS, TERMINAL)):
        table[[ord(mark) for mark in marks]] |= flag
    return table


def _cases() -> Tables:
    """Lower case and folded case; what folds to several code points is SEVERAL."""
    lower = np.arange(0x110000, dtype=np.uint32)
    folded = np.arange(0x110000, dtype=np.uint32)
    for point in range(0x110000):
        mark = chr(point)
        low, fold = mark.lower(), mark.casefold()
        if low != mark and len(low) == 1:
            lower[point] = ord(low)
        if fold != mark:
            folded[point] = ord(fold) if len(fold) == 1 else SEVERAL
    return {"lower": lower, "folded": folded}


def code_points(text: str) -> np.ndarray:
    """The code points of a text, shape (len(text),), uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def folded_points(text: str) -> np.ndarray:
    """The code points of `text.casefold()`, shape (n,), uint32."""
    if text.isascii():
        return code_points(text.lower())
    folded = _tables()["folded"][code_points(text)]
    return code_points(text.casefold()) if (folded == SEVERAL).any() else folded
