"""The look of program text, for documents whose owner does not say what kind they are."""

from collections.abc import Sequence

import numba
import numpy as np

from tasks.curation.text.code_points import SPACE, WORD

HEAD_CHARACTERS, HEAD_LINES, FEWEST_LINES, SHARE = 20_000, 200, 5, 0.4
# What a line of code begins with, after its indentation, character for character …
BEGINNINGS = ["def ", "class ", "import ", "#include", "#define", "function ", "var ", "let ", "const ", "public "]
BEGINNINGS += ["private ", "}", "elif ", "else:", "try:"]
# … and words after which something must or must not follow.
RETURN, EXCEPT, FROM, IMPORT, EQUALS = "return", "except", "from ", " import ", " = "
CALLS = ("if", "for", "while")  # before a parenthesis

compiled = numba.njit(cache=True, nogil=True)


def _packed(words: Sequence[str]) -> np.ndarray:
    """Words as rows of code points, filled up with zeros."""
    out = np.zeros((len(words), max(map(len, words)) + 1), dtype=np.uint32)
    for row, word in enumerate(words):
        out[row, : len(word)] = [ord(mark) for mark in word]
    return out


_BEGINNINGS = _packed(BEGINNINGS)
_WHOLE = _packed([RETURN, EXCEPT])
_CALLS = _packed(CALLS)
_FROM, _IMPORT, _EQUALS = _packed([FROM])[0], _packed([IMPORT])[0], _packed([EQUALS])[0]


@compiled
def _after(points, position, end, word):  # type: ignore[no-untyped-def]
    """Where the text goes on after `word`, -1 when it does not stand at `position`."""
    for mark in word:
        if mark == 0:
            return position
        if position >= end or points[position] != mark:
            return -1
        position += 1
    return position


@compiled
def _skip(points, position, end, table, flag):  # type: ignore[no-untyped-def]
    while position < end and table[points[position]] & flag:
        position += 1
    return position


@compiled
def _begins_as_code(points, start, end, table):  # type: ignore[no-untyped-def]
    """`start` is the first character that is not white space."""
    for word in _BEGINNINGS:
        if _after(points, start, end, word) >= 0:
            return True
    for word in _WHOLE:  # return and except: as whole words
        ahead = _after(points, start, end, word)
        if ahead >= 0 and (ahead == end or not table[points[ahead]] & WORD):
            return True
    for word in _CALLS:
        ahead = _after(points, start, end, word)
        if ahead >= 0:
            ahead = _skip(points, ahead, end, table, SPACE)
            if ahead < end and points[ahead] == 40:  # (
                return True
    ahead = _after(points, start, end, _FROM)
    if ahead >= 0:  # from … import
        module = ahead
        while ahead < end and not table[points[ahead]] & SPACE:
            ahead += 1
        if ahead > module and _after(points, ahead, end, _IMPORT) >= 0:
            return True
    if points[start] == 64 and start + 1 < end and table[points[start + 1]] & WORD:  # @decorator
        return True
    if points[start] == 60:  # <tag> or </tag>
        name = start + 2 if start + 1 < end and points[start + 1] == 47 else start + 1
        ahead = _skip(points, name, end, table, WORD)
        return ahead > name and ahead < end and (points[ahead] == 32 or points[ahead] == 62)
    ahead = _skip(points, start, end, table, WORD)  # name = …
    return ahead > start and _after(points, ahead, end, _EQUALS) >= 0


@compiled
def _ends_as_code(points, start, end, table):  # type: ignore[no-untyped-def]
    """`;`, `{` or `}` at the end, or `):`. `end` is behind the last character that is not white space."""
    last = points[end - 1]
    if last == 59 or last == 123 or last == 125:
        return True
    if last != 58:
        return False
    before = end - 1
    while before > start and table[points[before - 1]] & SPACE:
        before -= 1
    return before > start and points[before - 1] == 41


@compiled
def _code_lines(points, table):  # type: ignore[no-untyped-def]
    """Lines that are not blank, and how many of them have the form of code, among the first HEAD_LINES."""
    lines = code = start = 0
    for position in range(len(points) + 1):
        if position < len(points) and points[position] != 10:
            continue
        first = _skip(points, start, position, table, SPACE)
        last = position
        while last > first and table[points[last - 1]] & SPACE:
            last -= 1
        if first < last:
            lines += 1
            code += _begins_as_code(points, first, position, table) or _ends_as_code(points, start, last, table)
            if lines == HEAD_LINES:
                break
        start = position + 1
    return lines, code


def looks_like_code(points: np.ndarray, table: np.ndarray) -> bool:
    """Whether at least 4 in 10 of the first 200 lines that are not blank have the form of program text.

    `points` are the text's code points, `table` is `code_points.classes()`.
    """
    lines, code = _code_lines(points[:HEAD_CHARACTERS], table)
    return bool(lines >= FEWEST_LINES and code >= SHARE * lines)
