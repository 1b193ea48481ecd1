"""Code points and their classes, as arrays that compiled loops read."""

import re
from functools import cache

import numpy as np

# Scripts written without spaces: Han with extensions, kana, Thai, Lao, Khmer, Myanmar.
UNSPACED_RANGES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
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


@cache
def classes() -> np.ndarray:
    """The classes of every code point as a sum of flags, shape (0x110000,), uint8."""
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


@cache
def lower_case() -> np.ndarray:
    """The lower case of every code point, where that is one code point, shape (0x110000,), uint32."""
    table = np.arange(0x110000, dtype=np.uint32)
    for point in np.flatnonzero(classes() & LETTER).tolist():
        low = chr(point).lower()
        if len(low) == 1:
            table[point] = ord(low)
    return table


def code_points(text: str) -> np.ndarray:
    """The code points of a text, shape (len(text),), uint32."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
