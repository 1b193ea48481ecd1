"""The hot loops over a text's words, compiled by Numba: splitting, word rules, n-grams.

As in `text_kernels.py`: whole numbers, equal to plain Python's. `table` is `code_points.classes()`, `lower` is
`code_points.lower_case()`.
"""

from typing import NamedTuple

import numba
import numpy as np

from tasks.curation.text.code_points import LETTER, PUNCTUATION, SPACE, WORD

JOINERS = np.array([ord(mark) for mark in "'’-./:@"], dtype=np.uint32)
TOP, DUPLICATE = (2, 3, 4), (5, 6, 7, 8, 9, 10)  # n of the n-grams counted

compiled = numba.njit(cache=True, nogil=True)


class WordCounts(NamedTuple):
    """What is counted of a text's words and marks."""

    all: int  # words and marks
    words: int  # more than punctuation
    word_characters: int
    with_letter: int
    stop_word_kinds: int
    top_grams: list[int]  # characters of the most frequent n-gram, for each n of TOP
    duplicate_grams: list[int]  # characters of n-grams that stood before, for each n of DUPLICATE


@compiled
def _joins(point):  # type: ignore[no-untyped-def]
    for mark in JOINERS:  # noqa: SIM110 (Numba compiles loops, not generators)
        if point == mark:
            return True
    return False


@compiled
def split_words(points, table):  # type: ignore[no-untyped-def]
    """Starts and ends of the words and marks of a text with spaces, each shape (n,).

    A word is a run of letters and digits that may go on after joiners (`don't`, `a.b`, `x/y`); of other characters
    that are not white space a run of the same one (`...`, `--`) is one mark.
    """
    size = len(points)
    starts = np.empty(size, dtype=np.int32)
    ends = np.empty(size, dtype=np.int32)
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
            while position < size and _joins(points[position]):
                ahead = position
                while ahead < size and _joins(points[ahead]):
                    ahead += 1
                if ahead == size or not table[points[ahead]] & WORD:
                    break
                position = ahead
                while position < size and table[points[position]] & WORD:
                    position += 1
        else:
            mark = points[position]
            while position < size and points[position] == mark:
                position += 1
        ends[count] = position
        count += 1
    return starts[:count], ends[:count]


@compiled
def mix(value):  # type: ignore[no-untyped-def]
    """Spread a 64-bit value over all its bits (the finaliser of MurmurHash3, Appleby 2011)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@compiled
def lower_case_hashes(points, starts, ends, lower):  # type: ignore[no-untyped-def]
    """The hash of each word in lower case, shape (n,)."""
    out = np.empty(len(starts), dtype=np.uint64)
    for number in range(len(starts)):
        value = np.uint64(0xCBF29CE484222325)
        for index in range(starts[number], ends[number]):
            value = (value ^ np.uint64(lower[points[index]])) * np.uint64(0x100000001B3)  # FNV-1a
        out[number] = mix(value)
    return out


@compiled
def _words(points, starts, ends, table, lower, wanted, out):  # type: ignore[no-untyped-def]
    """Fills the first five counts; returns each word's hash. `wanted` are the stop words' hashes."""
    found = np.zeros(len(wanted), dtype=np.bool_)
    sieve = np.uint64(0)  # one bit for each stop word, so that most words are told apart at once
    for want in wanted:
        sieve |= np.uint64(1) << (want & np.uint64(63))
    hashes = np.empty(len(starts), dtype=np.uint64)
    for number in range(len(starts)):
        value = small = np.uint64(0xCBF29CE484222325)
        flags = plain = 0
        for index in range(starts[number], ends[number]):
            point = points[index]
            kind = table[point]
            flags |= kind
            plain |= (kind & PUNCTUATION) == 0
            value = (value ^ np.uint64(point)) * np.uint64(0x100000001B3)
            small = (small ^ np.uint64(lower[point])) * np.uint64(0x100000001B3)
        hashes[number] = mix(value)
        out[1] += plain
        out[2] += ends[number] - starts[number] if plain else 0
        out[3] += (flags & LETTER) != 0
        small = mix(small)
        if sieve >> (small & np.uint64(63)) & np.uint64(1):
            for kind_of_stop_word in range(len(wanted)):
                found[kind_of_stop_word] |= wanted[kind_of_stop_word] == small
    out[0], out[4] = len(starts), found.sum()
    return hashes


@compiled
def _ngrams(hashes, starts, ends, out):  # type: ignore[no-untyped-def]
    """Fills `out`: for n = 2, 3, 4 the characters of the most frequent n-gram, joined by single spaces (of
    equally frequent ones the first counts), for n = 5 … 10 those of n-grams that stood before, without
    overlap: after a repeat the walk goes on behind it.

    An n-gram can only repeat where both (n - 1)-grams in it do, so each n looks at what is left of the one before: in
    most texts very little.
    """
    count = len(hashes)
    left = max(count - 1, 0)
    places = np.arange(left)  # where an n-gram that may repeat begins
    grams = np.empty(left, dtype=np.uint64)
    slot_of = np.empty(left, dtype=np.int64)
    repeats = np.zeros(count + 1, dtype=np.bool_)  # whether the n-gram that begins here occurs twice
    most = 16
    while most < 2 * left:
        most *= 2
    keys = np.empty(most, dtype=np.uint64)
    times = np.empty(most, dtype=np.int32)
    for place in range(left):
        grams[place] = _longer(hashes[place], hashes[place + 1])
    for n in range(2, 11):
        size = 16
        while size < 2 * left:
            size *= 2
        times[:size] = 0
        for number in range(left):
            slot = np.int64(mix(grams[number]) & np.uint64(size - 1))
            while times[slot] and keys[slot] != grams[number]:
                slot = (slot + 1) & (size - 1)
            keys[slot] = grams[number]
            times[slot] += 1
            slot_of[number] = slot
        if n <= 4:
            out[n - 2] = _most_frequent(places[:left], slot_of, times, starts, ends, n)
        repeats[:] = False
        for number in range(left):
            repeats[places[number]] = times[slot_of[number]] > 1
        if n >= 5:
            out[n - 2] = _walk(places[:left], slot_of, times, starts, ends, n)
        kept = 0
        for number in range(left):
            place = places[number]
            if repeats[place] and repeats[place + 1] and place + n < count:
                places[kept], grams[kept] = place, _longer(grams[number], hashes[place + n])
                kept += 1
        left = kept
        if left == 0:
            break
    for n in range(2, min(4, count) + 1):
        if out[n - 2] == 0:  # nothing repeats: then the most frequent is the first
            out[n - 2] = _length(starts, ends, 0, n) + n - 1


@compiled
def _longer(gram, word):  # type: ignore[no-untyped-def]
    """The hash of an n-gram with one more word."""
    gram ^= gram >> np.uint64(29)
    return gram * np.uint64(0x9E3779B97F4A7C15) + word


@compiled
def _length(starts, ends, place, n):  # type: ignore[no-untyped-def]
    total = 0
    for number in range(place, place + n):
        total += ends[number] - starts[number]
    return total


@compiled
def _most_frequent(places, slot_of, times, starts, ends, n):  # type: ignore[no-untyped-def]
    best, first = 1, -1
    for number in range(len(places)):
        if times[slot_of[number]] > best:
            best, first = times[slot_of[number]], places[number]
    return (_length(starts, ends, first, n) + n - 1) * best if best > 1 else 0


@compiled
def _walk(places, slot_of, times, starts, ends, n):  # type: ignore[no-untyped-def]
    """Marks a gram that was seen by a negative count."""
    characters = free = 0
    for number in range(len(places)):
        if places[number] < free:
            continue
        if times[slot_of[number]] < 0:
            characters += _length(starts, ends, places[number], n)
            free = places[number] + n
        else:
            times[slot_of[number]] = -1
    return characters


@compiled
def _word_counts(points, starts, ends, table, lower, wanted):  # type: ignore[no-untyped-def]
    out = np.zeros(14, dtype=np.int64)
    hashes = _words(points, starts, ends, table, lower, wanted, out)
    _ngrams(hashes, starts, ends, out[5:])
    return out


def word_counts(
    points: np.ndarray, spans: tuple[np.ndarray, np.ndarray], table: np.ndarray, lower: np.ndarray, wanted: np.ndarray
) -> WordCounts:
    """Everything counted of the words at `spans` (starts, ends). `wanted`: the stop words' `lower_case_hashes`."""
    every, words, characters, with_letter, kinds, *grams = _word_counts(points, *spans, table, lower, wanted).tolist()
    return WordCounts(every, words, characters, with_letter, kinds, grams[: len(TOP)], grams[len(TOP) :])
