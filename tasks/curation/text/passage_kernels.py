"""Paragraphs and sentences of a text, compiled by Numba: where they stand, how long they are, and a hash of each.

The same in plain Python is in `tests/oracles/passages.py`, and a test holds the two equal. Which lines are fenced code
or markup comes from Python, since regular expressions say that best, and few texts have any.
"""

import numba
import numpy as np

from tasks.curation.text.code_points import SPACE, TERMINAL, UNSPACED, WORD
from tasks.curation.text.word_kernels import mix

compiled = numba.njit(cache=True, nogil=True)

FRAME = np.array([ord(mark) for mark in "-+=|:*_ \t"], dtype=np.uint32)  # frames of tables, and rulers
FULL_STOPS = np.array([ord(mark) for mark in "。！？"], dtype=np.uint32)
STOPS = np.array([ord(mark) for mark in ".!?…"], dtype=np.uint32)
AFTER_FULL_STOP = np.array([ord(mark) for mark in "\"'”’」』）"], dtype=np.uint32)
AFTER_STOP = np.array([ord(mark) for mark in "\"'”’)]"], dtype=np.uint32)


@compiled
def _among(point, marks):  # type: ignore[no-untyped-def]
    for mark in marks:  # noqa: SIM110 (Numba compiles loops, not generators)
        if point == mark:
            return True
    return False


@compiled
def _is_prose(points, start, end):  # type: ignore[no-untyped-def]
    """A line that is neither part of a table, nor a ruler, nor indented as code."""
    pipes = tabs = 0
    framed = end - start >= 3
    for position in range(start, end):
        point = points[position]
        pipes += point == 124
        tabs += point == 9
        if framed:
            framed = _among(point, FRAME)
    if pipes >= 2 or tabs >= 2 or framed:
        return False
    position = start
    while position < end and position - start < 4 and points[position] == 32:
        position += 1
    return position - start < 4 and not (position < end and points[position] == 9)


@compiled
def _has_blank_line(points, table):  # type: ignore[no-untyped-def]
    after_break = False  # nothing but white space since the last line break
    for point in points:
        if point == 10:
            if after_break:
                return True
            after_break = True
        elif not table[point] & SPACE:
            after_break = False
    return False


@compiled
def _paragraphs(points, table, guarded):  # type: ignore[no-untyped-def]
    """Starts and ends of the paragraphs. `guarded` says of each line whether it belongs to code or markup."""
    lines = 1
    for point in points:
        lines += point == 10
    starts, ends, count = np.empty(lines, np.int32), np.empty(lines, np.int32), 0
    single = not _has_blank_line(points, table)
    inside = False
    start = number = 0
    for position in range(len(points) + 1):
        if position < len(points) and points[position] != 10:
            continue
        head, tail = start, position
        while head < tail and table[points[head]] & SPACE:
            head += 1
        while head < tail and table[points[tail - 1]] & SPACE:
            tail -= 1
        prose = head < tail and not (len(guarded) > 0 and guarded[number]) and _is_prose(points, start, position)
        if inside and (single or not prose):
            count, inside = count + 1, False
        if prose:
            if not inside:
                starts[count], inside = head, True
            ends[count] = tail
        start, number = position + 1, number + 1
    count += inside
    return starts[:count], ends[:count]


@compiled
def _tokens(points, table, start, end):  # type: ignore[no-untyped-def]
    """Words, and characters of scripts without spaces."""
    count = 0
    inside = False
    for position in range(start, end):
        kind = table[points[position]] & (WORD | UNSPACED)
        count += (kind & UNSPACED) != 0 or (kind == WORD and not inside)
        inside = kind == WORD
    return count


@compiled
def _hashes(points, table, start, end):  # type: ignore[no-untyped-def]
    """Two 64-bit hashes of a passage; the same for passages that differ in white space alone."""
    one, two = np.uint64(0xCBF29CE484222325), np.uint64(0x84222325CBF29CE4)
    space = False
    for position in range(start, end):
        point = points[position]
        if table[point] & SPACE:
            space = True
            continue
        if space:
            one = (one ^ np.uint64(32)) * np.uint64(0x100000001B3)
            two = (two ^ np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)
            two ^= two >> np.uint64(29)
            space = False
        one = (one ^ np.uint64(point)) * np.uint64(0x100000001B3)  # FNV-1a over code points
        two = (two ^ np.uint64(point)) * np.uint64(0x9E3779B97F4A7C15)
        two ^= two >> np.uint64(29)
    return mix(one), mix(two)


@compiled
def _sentence_end(points, table, position, end):  # type: ignore[no-untyped-def]
    """Where the marks that end a sentence here end, and where the next one begins; (−1, where to look on) if none.

    Full stops of Chinese end a sentence wherever they stand; those of Latin, only before white space.
    """
    ahead = position
    if _among(points[position], FULL_STOPS):
        while ahead < end and _among(points[ahead], FULL_STOPS):
            ahead += 1
        while ahead < end and _among(points[ahead], AFTER_FULL_STOP):
            ahead += 1
    elif _among(points[position], STOPS):
        while ahead < end and _among(points[ahead], STOPS):
            ahead += 1
        behind = ahead
        while ahead < end and _among(points[ahead], AFTER_STOP):
            ahead += 1
        if ahead == end or not table[points[ahead]] & SPACE:
            return -1, behind
    else:
        return -1, position + 1
    after = ahead
    while after < end and table[points[after]] & SPACE:
        after += 1
    return ahead, after


@compiled
def passages(points, table, guarded, long_paragraph, long_sentence):  # type: ignore[no-untyped-def]
    """The paragraphs and the sentences with at least so many tokens, in order.

    Returns where the paragraphs start and end, shape (n, 2), and their hashes, shape (n, 2); the same of sentences,
    with shapes (m, 2) and (m,).
    """
    starts, ends = _paragraphs(points, table, guarded)
    most = len(points) // max(long_sentence, 1) + 1
    places, identities = np.empty((len(starts), 2), np.int32), np.empty((len(starts), 2), np.uint64)
    spans, hashes = np.empty((most, 2), np.int32), np.empty(most, np.uint64)
    found = sentences = 0
    for number in range(len(starts)):
        start, end = starts[number], ends[number]
        size = _tokens(points, table, start, end)
        if size >= long_paragraph:
            places[found, 0], places[found, 1] = start, end
            identities[found, 0], identities[found, 1] = _hashes(points, table, start, end)
            found += 1
        if size < long_sentence:
            continue
        begin = position = start
        while position < end:
            last = -1
            if table[points[position]] & TERMINAL:
                last, position = _sentence_end(points, table, position, end)
            else:
                position += 1
            if position >= end and last < 0:
                last = end
            if last < 0:
                continue
            if _tokens(points, table, begin, last) >= long_sentence:
                spans[sentences, 0], spans[sentences, 1] = begin, last
                hashes[sentences] = _hashes(points, table, begin, last)[0]
                sentences += 1
            begin = position
    return places[:found], identities[:found], spans[:sentences], hashes[:sentences]
