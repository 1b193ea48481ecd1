"""The hot loops over a text's characters and lines, compiled by Numba.

All count in code points and return whole numbers, so that `tests/oracles/signals.py`, the same in plain Python, must
give exactly the same. `table` is `code_points.classes()`. Numba renews its cache when the file of a kernel changes, so
kernels that call one another stand in one file.
"""

from typing import NamedTuple

import numba
import numpy as np

from tasks.curation.text.code_points import ALPHANUMERIC, DIGIT, LETTER, SPACE, TERMINAL, UNSPACED
from tasks.curation.text.word_kernels import mix

BULLETS = np.array([ord(mark) for mark in "•-*‣·"], dtype=np.uint32)
ELLIPSIS = ord("…")
SHORT = 30  # characters of a short line, FineWeb
LONG = 200  # characters of a long paragraph, C4

compiled = numba.njit(cache=True, nogil=True)


class TextCounts(NamedTuple):
    """What one pass over the characters counts. Lines are not blank, unless they are called parts."""

    alphanumeric: int
    spaces: int
    digits: int
    parentheses: int
    brackets: int  # {
    hash_signs: int
    breaks: int  # line breaks
    ellipses: int  # `...` without overlap, and `…`
    sentences: int  # the end of a line ends one, too
    letters: int
    unspaced: int  # letters of scripts without spaces
    lines: int
    line_characters: int
    longest_line: int
    bullets: int
    dotted: int  # lines that end in an ellipsis
    punctuated: int  # lines that end in terminal punctuation
    short: int
    parts: int  # lines of the stripped text that are not empty
    repeated_parts: int
    repeated_part_characters: int
    paragraphs: int  # between empty lines
    repeated_paragraphs: int
    repeated_paragraph_characters: int
    long_paragraphs: int


@compiled
def _among(point, marks):  # type: ignore[no-untyped-def]
    for mark in marks:  # noqa: SIM110 (Numba compiles loops, not generators)
        if point == mark:
            return True
    return False


@compiled
def _hash(points, start, end):  # type: ignore[no-untyped-def]
    """Two code points a step: a multiplication waits for the one before."""
    value = np.uint64(0xCBF29CE484222325) ^ np.uint64(end - start)
    position = start
    while position + 1 < end:
        pair = np.uint64(points[position]) | np.uint64(points[position + 1]) << np.uint64(32)
        value = (value ^ pair) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
        position += 2
    if position < end:
        value = (value ^ np.uint64(points[position])) * np.uint64(0x9E3779B97F4A7C15)
    return mix(value)


@compiled
def _repeats(keys, sizes, count):  # type: ignore[no-untyped-def]
    """How many pieces repeat an earlier one, and how many characters those have."""
    size = 16
    while size < 2 * count:
        size *= 2
    slots = np.zeros(size, dtype=np.uint64)
    repeats = characters = 0
    for number in range(count):
        key = max(keys[number], np.uint64(1))  # 0 marks a free slot
        slot = np.int64(key & np.uint64(size - 1))
        while slots[slot] != 0 and slots[slot] != key:
            slot = (slot + 1) & (size - 1)
        if slots[slot] == key:
            repeats += 1
            characters += sizes[number]
        slots[slot] = key
    return repeats, characters


@compiled
def _strip(points, table, start, end):  # type: ignore[no-untyped-def]
    while start < end and table[points[start]] & SPACE:
        start += 1
    while start < end and table[points[end - 1]] & SPACE:
        end -= 1
    return start, end


@compiled
def _ends_sentence(points, table, position):  # type: ignore[no-untyped-def]
    """`.`, `!` or `?`, closing marks, then space or the end; `。`, `！`, `？`, `…` anywhere."""
    point = points[position]
    if point == 0x3002 or point == 0xFF01 or point == 0xFF1F or point == ELLIPSIS:
        return True
    if point != 46 and point != 33 and point != 63:
        return False
    ahead = position + 1
    while ahead < len(points) and points[ahead] in (34, 39, 41, 93):  # " ' ) ]
        ahead += 1
    return ahead == len(points) or (table[points[ahead]] & SPACE) != 0


@compiled
def _characters(points, table, out):  # type: ignore[no-untyped-def]
    """Fills the counts that ask for one character at a time."""
    alphanumeric = spaces = digits = parentheses = brackets = hash_signs = breaks = ellipses = sentences = dots = 0
    letters = unspaced = 0
    begun = False  # a sentence: something that can be read since the last one ended
    for position in range(len(points)):
        point = points[position]
        kind = table[point]
        alphanumeric += (kind & ALPHANUMERIC) != 0
        spaces += (kind & SPACE) != 0
        digits += (kind & DIGIT) != 0
        letters += (kind & LETTER) != 0
        unspaced += (kind & (LETTER | UNSPACED)) == (LETTER | UNSPACED)
        parentheses += point == 40 or point == 41 or point == 0xFF08 or point == 0xFF09
        brackets += point == 123
        hash_signs += point == 35
        begun = begun or (kind & ALPHANUMERIC) != 0
        if point == 10:
            breaks += 1
            sentences, begun = sentences + begun, False
        if kind & TERMINAL:
            if begun and _ends_sentence(points, table, position):
                sentences, begun = sentences + 1, False
            ellipses += point == ELLIPSIS
            dots = dots + 1 if point == 46 else 0
            if dots == 3:
                ellipses, dots = ellipses + 1, 0
        else:
            dots = 0
    sentences += begun
    out[:9] = (alphanumeric, spaces, digits, parentheses, brackets, hash_signs, breaks, ellipses, sentences)
    out[9:11] = letters, unspaced


@compiled
def _lines(points, table, out):  # type: ignore[no-untyped-def]
    """Fills the counts of lines, and those of parts and paragraphs that stood before.

    Lines are taken of the text as it is; parts and paragraphs of the stripped text, and a paragraph is a run of parts.
    """
    first, last = _strip(points, table, 0, len(points))
    most = out[6] + 1
    keys, sizes, parts = np.empty(most, np.uint64), np.empty(most, np.int64), 0
    paragraph_keys, paragraph_sizes, paragraphs = np.empty(most, np.uint64), np.empty(most, np.int64), 0
    inside = False  # a paragraph
    start = 0
    for position in range(len(points) + 1):
        if position < len(points) and points[position] != 10:
            continue
        head, tail = _strip(points, table, start, position)
        if head < tail:
            length, end = position - start, points[tail - 1]
            out[11] += 1
            out[12] += length
            out[13] = max(out[13], length)
            out[14] += _among(points[head], BULLETS)
            out[15] += end == ELLIPSIS or (
                tail - head >= 3 and end == 46 and points[tail - 2] == 46 and points[tail - 3] == 46
            )
            out[16] += (table[end] & TERMINAL) != 0
            out[17] += length <= SHORT
        left, right = max(start, first), min(position, last)
        if left < right:
            key = _hash(points, left, right)
            keys[parts], sizes[parts] = key, right - left
            parts += 1
            if inside:
                paragraph_keys[paragraphs - 1] = mix(paragraph_keys[paragraphs - 1] * np.uint64(3) + key)
                paragraph_sizes[paragraphs - 1] += right - left + 1
            else:
                paragraph_keys[paragraphs], paragraph_sizes[paragraphs] = key, right - left
                paragraphs += 1
                inside = True
        elif start == position:
            inside = False
        start = position + 1
    out[18] = parts
    out[19:21] = _repeats(keys, sizes, parts)
    out[21] = paragraphs
    out[22:24] = _repeats(paragraph_keys, paragraph_sizes, paragraphs)
    for number in range(paragraphs):
        out[24] += paragraph_sizes[number] >= LONG


@compiled
def _text_counts(points, table):  # type: ignore[no-untyped-def]
    out = np.zeros(25, dtype=np.int64)
    _characters(points, table, out)
    _lines(points, table, out)
    return out


def text_counts(points: np.ndarray, table: np.ndarray) -> TextCounts:
    """Everything counted of a text's characters and lines."""
    return TextCounts(*_text_counts(points, table).tolist())
