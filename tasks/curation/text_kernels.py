"""The hot loops of the text signals, compiled by Numba: words, n-grams, lines, sentences, characters.

All count in code points and return whole numbers, so that `tests/oracles/signals.py`, the same in plain Python, must
give exactly the same. `table` is `code_points.classes()`, `lower` is `code_points.lower_case()`.
"""

import numba
import numpy as np

from tasks.curation.code_points import ALPHANUMERIC, DIGIT, LETTER, PUNCTUATION, SPACE, TERMINAL, WORD

HAS_LETTER, PLAIN = 1, 2  # of a word: holds a letter; is more than punctuation
JOINERS = np.array([ord(mark) for mark in "'’-./:@"], dtype=np.uint32)
BULLETS = np.array([ord(mark) for mark in "•-*‣·"], dtype=np.uint32)
ELLIPSIS = ord("…")
SHORT = 30  # characters of a short line, FineWeb
LONG = 200  # characters of a long paragraph, C4

compiled = numba.njit(cache=True, nogil=True)


@compiled
def _among(point, marks):  # type: ignore[no-untyped-def]
    for mark in marks:  # noqa: SIM110 (Numba compiles loops, not generators)
        if point == mark:
            return True
    return False


@compiled
def _mix(value):  # type: ignore[no-untyped-def]
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@compiled
def _hash(points, start, end):  # type: ignore[no-untyped-def]
    value = np.uint64(0xCBF29CE484222325)
    for position in range(start, end):
        value = (value ^ np.uint64(points[position])) * np.uint64(0x100000001B3)
    return _mix(value)


@compiled
def character_counts(points: np.ndarray, table: np.ndarray) -> np.ndarray:
    """How many are alphanumeric, white space, digits, parentheses, `{`, `#`, and line breaks; shape (7,)."""
    out = np.zeros(7, dtype=np.int64)
    for point in points:
        kind = table[point]
        out[0] += (kind & ALPHANUMERIC) != 0
        out[1] += (kind & SPACE) != 0
        out[2] += (kind & DIGIT) != 0
        out[3] += point == 40 or point == 41 or point == 0xFF08 or point == 0xFF09
        out[4] += point == 123
        out[5] += point == 35
        out[6] += point == 10
    return out


@compiled
def split_words(points, table):  # type: ignore[no-untyped-def]
    """Starts and ends of the words and marks of a text with spaces, each shape (n,).

    A word is a run of letters and digits that may go on after joiners (`don't`, `a.b`, `x/y`); a run of other
    characters that are not white space is one mark.
    """
    size = len(points)
    starts = np.empty(size, dtype=np.int64)
    ends = np.empty(size, dtype=np.int64)
    count = 0
    position = 0
    while position < size:
        kind = table[points[position]]
        if kind & SPACE:
            position += 1
            continue
        starts[count] = position
        if kind & WORD:
            while position < size and table[points[position]] & WORD:
                position += 1
            while position < size and _among(points[position], JOINERS):
                ahead = position
                while ahead < size and _among(points[ahead], JOINERS):
                    ahead += 1
                if ahead == size or not table[points[ahead]] & WORD:
                    break
                position = ahead
                while position < size and table[points[position]] & WORD:
                    position += 1
        else:
            while position < size and not table[points[position]] & (WORD | SPACE):
                position += 1
        ends[count] = position
        count += 1
    return starts[:count], ends[:count]


@compiled
def word_features(points, starts, ends, table, lower):  # type: ignore[no-untyped-def]
    """Of each word: its hash, the hash of its lower case, its length, its flags; each shape (n,)."""
    count = len(starts)
    hashes = np.empty(count, dtype=np.uint64)
    lowered = np.empty(count, dtype=np.uint64)
    lengths = np.empty(count, dtype=np.int64)
    flags = np.zeros(count, dtype=np.uint8)
    for number in range(count):
        small = np.uint64(0xCBF29CE484222325)
        flag = 0
        for index in range(starts[number], ends[number]):
            kind = table[points[index]]
            if kind & LETTER:
                flag |= HAS_LETTER
            if not kind & PUNCTUATION:
                flag |= PLAIN
            small = (small ^ np.uint64(lower[points[index]])) * np.uint64(0x100000001B3)
        hashes[number] = _hash(points, starts[number], ends[number])
        lowered[number] = _mix(small)
        lengths[number] = ends[number] - starts[number]
        flags[number] = flag
    return hashes, lowered, lengths, flags


@compiled
def kinds_found(hashes: np.ndarray, wanted: np.ndarray) -> int:
    """How many of the wanted hashes occur."""
    found = 0
    for want in wanted:
        for value in hashes:
            if value == want:
                found += 1
                break
    return found


@compiled
def _slots(count):  # type: ignore[no-untyped-def]
    size = 16
    while size < 2 * count:
        size *= 2
    return size


@compiled
def _find(keys, key):  # type: ignore[no-untyped-def]
    """The slot of a key in an open-addressing table (0 marks an empty slot; the key 0 is stored as 1)."""
    mask = len(keys) - 1
    slot = np.int64(key & np.uint64(mask))
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


@compiled
def ngram_hashes(hashes, n):  # type: ignore[no-untyped-def]
    """A hash of each window of n words, shape (len - n + 1,), never 0; empty when there are fewer than n words."""
    count = max(len(hashes) - n + 1, 0)
    out = np.empty(count, dtype=np.uint64)
    for start in range(count):
        value = hashes[start]
        for step in range(1, n):
            value ^= value >> np.uint64(29)
            value *= np.uint64(0x9E3779B97F4A7C15)
            value += hashes[start + step]
        value = _mix(value)
        out[start] = value if value != 0 else np.uint64(1)
    return out


@compiled
def top_ngram_characters(hashes, lengths, n):  # type: ignore[no-untyped-def]
    """Characters covered by the most frequent n-gram, joined by single spaces; 0 when none repeats.

    Of equally frequent n-grams the first in the text counts.
    """
    grams = ngram_hashes(hashes, n)
    keys = np.zeros(_slots(len(grams)), dtype=np.uint64)
    counts = np.zeros(len(keys), dtype=np.int64)
    firsts = np.zeros(len(keys), dtype=np.int64)
    for position in range(len(grams)):
        slot = _find(keys, grams[position])
        if keys[slot] == 0:
            keys[slot] = grams[position]
            firsts[slot] = position
        counts[slot] += 1
    best, first = 1, -1
    for slot in range(len(keys)):
        if counts[slot] > best or (counts[slot] == best and best > 1 and firsts[slot] < first):
            best, first = counts[slot], firsts[slot]
    if best < 2:
        return 0
    return (lengths[first : first + n].sum() + n - 1) * best


@compiled
def duplicate_ngram_characters(hashes, lengths, n):  # type: ignore[no-untyped-def]
    """Characters in n-grams that stood before, without overlap: after a repeat the walk goes on behind it."""
    grams = ngram_hashes(hashes, n)
    keys = np.zeros(_slots(len(grams)), dtype=np.uint64)
    characters = 0
    position = 0
    while position < len(grams):
        slot = _find(keys, grams[position])
        if keys[slot] == grams[position]:
            characters += lengths[position : position + n].sum()
            position += n
        else:
            keys[slot] = grams[position]
            position += 1
    return characters


@compiled
def _repeats(points, starts, ends, count):  # type: ignore[no-untyped-def]
    """How many pieces repeat an earlier one, and how many characters those have."""
    keys = np.zeros(_slots(count), dtype=np.uint64)
    repeats = characters = 0
    for number in range(count):
        key = max(_hash(points, starts[number], ends[number]), np.uint64(1))
        slot = _find(keys, key)
        if keys[slot] == key:
            repeats += 1
            characters += ends[number] - starts[number]
        keys[slot] = key
    return repeats, characters


@compiled
def _strip(points, table, start, end):  # type: ignore[no-untyped-def]
    while start < end and table[points[start]] & SPACE:
        start += 1
    while start < end and table[points[end - 1]] & SPACE:
        end -= 1
    return start, end


@compiled
def repeated_parts(points, table, breaks):  # type: ignore[no-untyped-def]
    """Parts between runs of at least `breaks` line breaks (1: lines, 2: paragraphs) of the stripped text.

    Returns [parts, repeated parts, characters in those, parts of at least 200 characters]; shape (4,).
    """
    first, last = _strip(points, table, 0, len(points))
    starts = np.empty(last - first + 1, dtype=np.int64)
    ends = np.empty(last - first + 1, dtype=np.int64)
    count = long = 0
    start = position = first
    while position <= last:
        run = 0
        while position + run < last and points[position + run] == 10:
            run += 1
        if position == last or run >= breaks:
            if position > start:
                starts[count], ends[count] = start, position
                count += 1
                long += position - start >= LONG
            position += run
            start = position
            if run == 0:
                break
        else:
            position += max(run, 1)
    repeats, characters = _repeats(points, starts, ends, count)
    return np.array([count, repeats, characters, long])


@compiled
def line_counts(points: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Of lines that are not blank: how many, characters, the longest, how many begin with a bullet, end in an
    ellipsis, end in terminal punctuation, are short; shape (7,)."""
    out = np.zeros(7, dtype=np.int64)
    start = 0
    for position in range(len(points) + 1):
        if position < len(points) and points[position] != 10:
            continue
        first, last = _strip(points, table, start, position)
        if first < last:
            length = position - start
            out[0] += 1
            out[1] += length
            out[2] = max(out[2], length)
            out[3] += _among(points[first], BULLETS)
            dots = last - first >= 3 and points[last - 1] == 46 and points[last - 2] == 46 and points[last - 3] == 46
            out[4] += dots or points[last - 1] == ELLIPSIS
            out[5] += (table[points[last - 1]] & TERMINAL) != 0
            out[6] += length <= SHORT
        start = position + 1
    return out


@compiled
def count_sentences(points: np.ndarray, table: np.ndarray) -> int:
    """Ends of sentences: `.`, `!` or `?`, closing marks, then space or the end; `。`, `！`, `？`, `…` anywhere."""
    count = 0
    for position in range(len(points)):
        point = points[position]
        if point == 0x3002 or point == 0xFF01 or point == 0xFF1F or point == ELLIPSIS:
            count += 1
        elif point == 46 or point == 33 or point == 63:
            ahead = position + 1
            while ahead < len(points) and (
                points[ahead] == 34 or points[ahead] == 39 or points[ahead] == 41 or points[ahead] == 93
            ):
                ahead += 1
            count += ahead == len(points) or (table[points[ahead]] & SPACE) != 0
    return count


@compiled
def ellipses(points: np.ndarray) -> int:
    """Occurrences of `...` without overlap, and of `…`."""
    count = 0
    position = 0
    while position < len(points):
        if points[position] == ELLIPSIS:
            count += 1
        elif (
            position + 2 < len(points)
            and points[position] == 46
            and points[position + 1] == 46
            and points[position + 2] == 46
        ):
            count += 1
            position += 2
        position += 1
    return count
