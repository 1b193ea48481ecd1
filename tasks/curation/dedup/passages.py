"""Paragraphs and sentences of a text, and how they are cut out of it so that it stays readable.

All positions are code points of the normalised text. Code (fenced, indented, in `<pre>` or a LaTeX listing) and tables
belong to no paragraph, so they are never touched.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tasks.curation.text.code_points import classes
from tasks.curation.text.passage_kernels import passages as passage_kernel

_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_OPENS = re.compile(
    r"<(pre|code|table|script|style)\b|\\begin\{(tabular\*?|verbatim|lstlisting|align\*?|equation\*?)\}"
)
_SIGNS_OF_GUARDED = re.compile(r"```|~~~|<(?:pre|code|table|script|style)|\\begin\{")
_NOTHING = np.empty(0, dtype=np.bool_)


class Passages(NamedTuple):
    """A text's paragraphs, and its sentences within all paragraphs, that are long enough, in order."""

    paragraphs: np.ndarray  # shape (n, 2): start and end without white space around it
    identities: np.ndarray  # shape (n, 2), uint64: equal for paragraphs that differ in white space alone
    sentences: np.ndarray  # shape (m, 2)
    hashes: np.ndarray  # shape (m,), uint64


def find_passages(text: str, points: np.ndarray, least_paragraph: int, least_sentence: int) -> Passages:
    """Passages with at least so many tokens: words, or characters of scripts without spaces.

    A paragraph is a block of lines between blank ones; in a text without blank lines each line is one. `points` are
    the text's code points.
    """
    return Passages(*passage_kernel(points, classes(), guarded_lines(text), least_paragraph, least_sentence))


def guarded_lines(text: str) -> np.ndarray:
    """Whether each line belongs to fenced code or markup that keeps its form; empty when no line does."""
    if not _SIGNS_OF_GUARDED.search(text):
        return _NOTHING
    found, fenced, until = [], False, ""
    for line in text.split("\n"):
        guarded = fenced or bool(until)
        if ("```" in line or "~~~" in line) and _FENCE.match(line):
            fenced, guarded = not fenced, True
        elif until:
            until = "" if until in line else until
        elif not guarded and ("<" in line or "\\" in line) and (opened := _OPENS.search(line)):
            guarded = True
            closing = f"</{opened[1]}" if opened[1] else f"\\end{{{opened[2]}}}"
            until = "" if closing in line[opened.end() :] else closing
        found.append(guarded)
    return np.array(found, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text to be cut, [start, end), and why: `twin_id` is the document where it stays."""

    start: int
    end: int
    rule: str
    level: str
    twin_id: str | None = None
    similarity: float | None = None


def cuts(text: str, passages: Sequence[Passage]) -> list[Passage]:
    """The spans to remove for these passages: in order, without overlap, with the white space that belongs to them.

    What is left neither begins nor ends with white space that was inside, nor has two separators where one was.
    """
    out: list[Passage] = []
    for group in _joined(text, passages):
        start, end = _with_space(text, group[0].start, max(item.end for item in group))
        starts = [start, *(item.start for item in group[1:]), end]
        for number, item in enumerate(group):
            if starts[number] < starts[number + 1]:
                out.append(replace(item, start=starts[number], end=starts[number + 1]))
    return out


def _joined(text: str, passages: Sequence[Passage]) -> list[list[Passage]]:
    """Passages with nothing but white space between them, together; those inside another left out."""
    groups: list[list[Passage]] = []
    reach = 0
    for item in sorted(passages, key=lambda passage: (passage.start, -passage.end)):
        if groups and not text[reach : item.start].strip():
            if item.end > reach:
                groups[-1].append(replace(item, start=max(item.start, reach)))
        else:
            groups.append([item])
        reach = max(reach, item.end)
    return groups


def _with_space(text: str, start: int, end: int) -> tuple[int, int]:
    before, after = text[:start].rstrip(), text[end:]
    line_start = text.rfind("\n", 0, start) + 1
    whole_start = not text[line_start:start].strip()
    following = len(after) - len(after.lstrip(" \t\u3000"))
    whole_end = end + following == len(text) or text[end + following] == "\n" or text[end - 1 : end] == "\n"
    if not after.strip():  # the end of the text: what separated it from the text before goes, too
        last_break = text.find("\n", len(text.rstrip()))
        return (len(before), last_break if last_break >= 0 else len(text)) if before else (0, len(text))
    if whole_start and whole_end:  # whole lines: up to the next line with something in it
        rest = after.lstrip()
        next_text = len(text) - len(rest)
        return line_start, max(text.rfind("\n", 0, next_text) + 1, end)
    if whole_end:
        return len(text[:start].rstrip(" \t\u3000")), end
    return start, end + len(after) - len(after.lstrip())


def without(text: str, spans: Sequence[Passage]) -> str:
    """The text without the spans."""
    pieces, position = [], 0
    for span in spans:
        pieces.append(text[position : span.start])
        position = span.end
    return "".join([*pieces, text[position:]])
