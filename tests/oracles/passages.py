"""Paragraphs and sentences of a text in plain Python: what the compiled kernel must equal."""

import re
from collections.abc import Iterator

import numpy as np

from tasks.curation.text.code_points import UNSPACED_RANGES

_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_OPENS = re.compile(
    r"<(pre|code|table|script|style)\b|\\begin\{(tabular\*?|verbatim|lstlisting|align\*?|equation\*?)\}"
)
_CODE = ("    ", "\t", " \t", "  \t", "   \t")
_FRAME = "-+=|:*_ \t"  # what frames of tables, and rulers, are drawn with
# Full stops of Chinese end a sentence wherever they stand; those of Latin, only before white space.
_END = re.compile(r"(?:[。！？]+[\"'”’」』）]*|[.!?…]+[\"'”’)\]]*(?=\s))\s*")


def paragraphs(text: str) -> list[tuple[int, int]]:
    """Where each paragraph starts and ends, without white space around it.

    A paragraph is a block of lines between blank ones; in a text without blank lines each line is one.
    """
    single = "\n\n" not in text and not re.search(r"\n[^\S\n]+\n", text)
    found: list[tuple[int, int]] = []
    begin = end = -1
    for start, line, is_prose in _lines(text):
        if begin >= 0 and (single or not is_prose or not line.strip()):
            found.append((begin, end))
            begin = -1
        if is_prose and line.strip():
            if begin < 0:
                begin = start + len(line) - len(line.lstrip())
            end = start + len(line.rstrip())
    return found if begin < 0 else [*found, (begin, end)]


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Each line's start, the line without its break, and whether it is prose."""
    start, fenced, until = 0, False, ""
    for line in text.split("\n"):
        prose = not fenced and not until
        if ("```" in line or "~~~" in line) and _FENCE.match(line):
            fenced, prose = not fenced, False
        elif until:
            until = "" if until in line else until
        elif prose and ("<" in line or "\\" in line) and (opened := _OPENS.search(line)):
            prose = False
            closing = f"</{opened[1]}" if opened[1] else f"\\end{{{opened[2]}}}"
            until = "" if closing in line[opened.end() :] else closing
        table = line.count("|") >= 2 or line.count("\t") >= 2 or (len(line) >= 3 and not line.strip(_FRAME))
        yield start, line, prose and not table and not line.startswith(_CODE)
        start += len(line) + 1


def sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Where each sentence of a paragraph starts and ends, without the white space after it."""
    found, begin = [], start
    for match in _END.finditer(text, start, end):
        if match.end() > begin:
            found.append((begin, match.start() + len(match[0].rstrip())))
            begin = match.end()
    return found if begin >= end else [*found, (begin, end)]


def tokens(text: str) -> np.ndarray:
    """How many words, and characters of scripts without spaces, begin before each position of a text."""
    begins = np.zeros(len(text) + 1, dtype=np.int32)
    for match in re.finditer(rf"[{UNSPACED_RANGES}]|[^\W{UNSPACED_RANGES}]+", text):
        begins[match.start() + 1] = 1
    return np.cumsum(begins)


def long_enough(places: list[tuple[int, int]], counts: np.ndarray, least: int) -> list[tuple[int, int]]:
    """The places with at least so many tokens."""
    return [(start, end) for start, end in places if counts[end] - counts[start] >= least]
