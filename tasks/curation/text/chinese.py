"""Chinese words: jieba's dictionary cut along its most probable path, without a hidden Markov model, compiled.

The same words as `jieba.cut(text, HMM=False)`, white space left out, at the speed of the other kernels. The dictionary
is a trie of small hash tables, built once and kept in the user's cache folder.
"""

import math
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from tasks.curation.text.code_points import SPACE
from tasks.curation.text.table_cache import Tables, cached_tables

ROOTS = 0xA000  # what jieba looks up lies below this code point
BITS = 5  # of a node's reference to its children, for the logarithm of their table's size
NONE = -1
MARK_BITS = 16

compiled = numba.njit(cache=True, nogil=True)


class Dictionary(NamedTuple):
    """A trie, laid out so that what is frequent in text stays in the processor's cache: a node's children stand in a
    small hash table of their own, and tables and nodes are in the order of the frequency of their words.

    Node n < ROOTS stands for the code point n.
    """

    marks: np.ndarray  # (slots,) uint16: the code point that leads to a child, 0 for a free slot
    children: np.ndarray  # (slots,) int32: the child's node
    nodes: np.ndarray  # (nodes, 2): as int64, its table << BITS | log2 of the table's size, or NONE; beside it, as
    # float64, the log probability of the word that ends here, or NaN
    unknown: float  # log probability of a character that begins no word


@cache
def dictionary() -> Dictionary:
    """jieba's own dictionary."""
    source = Path(str(distribution("jieba").locate_file("jieba/dict.txt"))).read_bytes()
    tables = cached_tables("jieba", source + Path(__file__).read_bytes(), lambda: _build(source.decode("utf-8")))
    return Dictionary(tables["marks"], tables["children"], tables["nodes"], float(tables["unknown"]))


def _build(text: str) -> Tables:
    frequencies: dict[str, int] = {}
    total = 0
    for line in text.splitlines():
        word, frequency = line.split(" ")[:2]
        frequencies[word] = int(frequency)
        total += int(frequency)  # every line counts, as in jieba, that of a repeated word too
    edges: dict[int, int] = {}
    weights = [math.nan] * ROOTS
    for word in sorted(frequencies, key=lambda word: -frequencies[word]):
        if not frequencies[word] or ord(max(word)) >= ROOTS:
            continue
        node = ord(word[0])
        for mark in word[1:]:
            node = edges.setdefault(node << MARK_BITS | ord(mark), len(weights))
            if node == len(weights):
                weights.append(math.nan)
        weights[node] = math.log(frequencies[word]) - math.log(total)
    families: dict[int, list[tuple[int, int]]] = {}
    for edge, child in edges.items():
        families.setdefault(edge >> MARK_BITS, []).append((edge & ((1 << MARK_BITS) - 1), child))
    tables, marks, children = [0] * len(weights), [0], [NONE]
    for parent, family in families.items():
        table, bits = len(marks), (len(family) + len(family) // 4).bit_length()
        tables[parent] = table << BITS | bits
        marks.extend([0] * (1 << bits))
        children.extend([NONE] * (1 << bits))
        for point, child in family:
            slot = _slot(point, bits)
            while marks[table + slot]:
                slot = (slot + 1) % (1 << bits)
            marks[table + slot], children[table + slot] = point, child
    nodes = np.empty((len(weights), 2))
    nodes.view(np.int64)[:, 0] = tables
    nodes[:, 1] = weights
    return {
        "marks": np.array(marks, dtype=np.uint16),
        "children": np.array(children, dtype=np.int32),
        "nodes": nodes,
        "unknown": np.array(-math.log(total)),
    }


@compiled
def _slot(mark, bits):  # type: ignore[no-untyped-def]
    """Where to look first for a character in a table of 2^bits (Fibonacci hashing)."""
    return ((mark * 40503) & 0xFFFF) >> (16 - bits)


@compiled
def _letter(point):  # type: ignore[no-untyped-def]
    """a–z, A–Z, 0–9: runs of them that are in no word stay together."""
    return 97 <= point <= 122 or 65 <= point <= 90 or 48 <= point <= 57


@compiled
def _looked_up(point):  # type: ignore[no-untyped-def]
    """Han up to U+9FD5, letters, digits, + # & . _ % -, as in jieba; any other character stands alone."""
    return 0x4E00 <= point <= 0x9FD5 or _letter(point) or point in (43, 35, 38, 46, 95, 37, 45)


@compiled
def _child(marks, children, family, point):  # type: ignore[no-untyped-def]
    """The node that a code point leads to from a family of children, NONE when no word goes on so."""
    table, last = family >> BITS, (1 << (family & ((1 << BITS) - 1))) - 1
    slot = _slot(np.int64(point), family & ((1 << BITS) - 1))
    while marks[table + slot] != point and marks[table + slot] != 0:
        slot = (slot + 1) & last
    return children[table + slot]


@compiled
def _pairs(points, marks, children, families, weights):  # type: ignore[no-untyped-def]
    """Of each position, the weight of its character, the node of it and the next one (or NONE), and that node's weight.

    One simple loop for each level of the trie: a processor waits for many of these loads at a time, where the walk
    from one position to the next would wait for each.
    """
    size = len(points)
    first = np.empty(size, dtype=np.int64)
    singles = np.empty(size, dtype=np.float64)
    for position in range(size):
        point = points[position] if points[position] < ROOTS else 0
        first[position], singles[position] = families[point], weights[point]
    nodes = np.full(size, NONE, dtype=np.int32)
    for position in range(size - 1):
        family, point = first[position], points[position + 1]
        nodes[position] = marks[(family >> BITS) + _slot(np.int64(point), family & ((1 << BITS) - 1))]
    for position in range(size - 1):
        if nodes[position]:
            nodes[position] = _child(marks, children, first[position], points[position + 1])
        else:
            nodes[position] = NONE
    doubles = np.full(size, np.nan)
    for position in range(size - 1):
        if nodes[position] != NONE:
            doubles[position] = weights[nodes[position]]
    return singles, nodes, doubles


@compiled
def _best_steps(points, start, end, trie, pairs, best, steps):  # type: ignore[no-untyped-def]
    """Fills `steps` with the length of the word at each position on the most probable path through [start, end).

    `best` is the path's log probability from each position on; of equally probable words the longest is taken.
    """
    marks, children, families, weights, unknown = trie
    singles, nodes, doubles = pairs
    best[end] = 0.0
    for first in range(end - 1, start - 1, -1):
        value, step = -np.inf, 0
        if not np.isnan(singles[first]):
            value, step = singles[first] + best[first + 1], 1
        node, weight, position = nodes[first], doubles[first], first + 2
        while node != NONE and position <= end:
            if not np.isnan(weight) and weight + best[position] >= value:
                value, step = weight + best[position], position - first
            if position == end or families[node] == 0:
                break
            node = _child(marks, children, families[node], points[position])
            weight = weights[node]
            position += 1
        if step == 0:
            value, step = unknown + best[first + 1], 1
        best[first], steps[first] = value, step


@compiled
def _split(points, table, marks, children, nodes, unknown):  # type: ignore[no-untyped-def]
    families, weights = nodes.view(np.int64)[:, 0], nodes[:, 1]
    trie = (marks, children, families, weights, unknown)
    pairs = _pairs(points, marks, children, families, weights)
    size = len(points)
    starts = np.empty(size, dtype=np.int32)
    ends = np.empty(size, dtype=np.int32)
    best = np.empty(size + 1, dtype=np.float64)
    steps = np.empty(size, dtype=np.int32)
    count = position = 0
    while position < size:
        if not _looked_up(points[position]):
            if not table[points[position]] & SPACE:
                starts[count], ends[count] = position, position + 1
                count += 1
            position += 1
            continue
        end = position + 1
        while end < size and _looked_up(points[end]):
            end += 1
        _best_steps(points, position, end, trie, pairs, best, steps)
        run = False  # whether the word before is a run of single letters that this one may go on
        while position < end:
            single = steps[position] == 1 and _letter(points[position])
            if single and run:
                ends[count - 1] = position + 1
            else:
                starts[count], ends[count] = position, position + steps[position]
                count += 1
            run = single
            position += steps[position]
    return starts[:count], ends[:count]


def split_chinese(points: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the words and marks of a text, each shape (n,). `table` is `code_points.classes()`."""
    return _split(points, table, *dictionary())
