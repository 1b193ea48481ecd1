"""Paragraphs and sentences of a text, and how they are cut out of it so that it stays readable.

All positions are code points of the normalised text. Code (fenced, indented, in `<pre>` or a LaTeX listing) and tables
belong to no paragraph, so they are never touched.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from tasks.curation.dedup.shingle_kernels import tokens_before
from tasks.curation.text.code_points import classes, code_points

_FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
_OPENS = re.compile(
    r"<(pre|code|table|script|style)\b|\\begin\{(tabular\*?|verbatim|lstlisting|align\*?|equation\*?)\}"
)
_CODE = ("    ", "\t", " \t", "  \t", "   \t")
_FRAME = "-+=|:*_ \t"  # what frames of tables, and rulers, are drawn with
# Full stops of Chinese end a sentence wherever they stand; those of Latin, only before white space.
_END = re.compile(r"(?:[。！？]+[\"'”’」』）]*|[.!?…]+[\"'”’)\]]*(?=\s))\s*")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text to be cut, [start, end), and why: `twin_id` is the document where it stays."""

    start: int
    end: int
    rule: str
    level: str
    twin_id: str | None = None
    similarity: float | None = None


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
    return tokens_before(code_points(text), classes())


def long_enough(places: list[tuple[int, int]], counts: np.ndarray, least: int) -> list[tuple[int, int]]:
    """The places with at least so many tokens."""
    return [(start, end) for start, end in places if counts[end] - counts[start] >= least]


def identity(text: str, day: int) -> bytes:
    """16 bytes that are equal for passages of one snapshot that differ in white space alone."""
    return hashlib.blake2b(f"{day}\0{' '.join(text.split())}".encode(), digest_size=16).digest()


def sentence_hash(text: str, day: int) -> int:
    return xxhash.xxh3_64_intdigest(" ".join(text.split()).encode(), seed=day)


def of_day(bands: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Band hashes, shape (n, bands), that never meet those of another snapshot's passages; `days` has shape (n,)."""
    return bands ^ (days.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))[:, None]


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
