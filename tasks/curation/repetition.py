"""Repetition inside one document: duplicate lines, paragraphs and n-grams.

Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training Gopher", table A1.
"""

from collections.abc import Sequence

import numpy as np
import xxhash

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def duplicate_share(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts repeat an earlier one, and how many characters those have."""
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count += 1
            characters += len(part)
        else:
            seen.add(part)
    return count, characters


def hash_tokens(tokens: Sequence[str]) -> np.ndarray:
    """A stable 64-bit hash of each token (xxh3), shape (n,)."""
    memo: dict[str, int] = {}
    out = []
    for token in tokens:
        value = memo.get(token)
        if value is None:
            value = memo[token] = xxhash.xxh3_64_intdigest(token.encode("utf-8"))
        out.append(value)
    return np.array(out, dtype=np.uint64)


def ngram_hashes(hashes: np.ndarray, n: int) -> np.ndarray:
    """A hash of each window of n tokens, shape (len - n + 1,); empty when there are fewer than n tokens."""
    count = len(hashes) - n + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    out = hashes[:count].copy()
    for step in range(1, n):
        out ^= out >> np.uint64(29)  # mixing between the steps keeps the order of the tokens in the hash
        out *= _MULTIPLIER
        out += hashes[step : step + count]
    out ^= out >> np.uint64(32)
    return out


def top_ngram_characters(hashes: np.ndarray, lengths: np.ndarray, n: int) -> int:
    """Characters covered by the most frequent n-gram, joined by single spaces; 0 when none repeats.

    Of equally frequent n-grams the first in the text counts.
    """
    grams = ngram_hashes(hashes, n)
    if not len(grams):
        return 0
    _, first, counts = np.unique(grams, return_index=True, return_counts=True)
    best = counts.max()
    if best < 2:
        return 0
    start = first[counts == best].min()
    return int(lengths[start : start + n].sum() + n - 1) * int(best)


def duplicate_ngram_characters(hashes: np.ndarray, lengths: np.ndarray, n: int) -> int:
    """Characters in n-grams that stood before, without overlap: after a repeat the walk goes on behind it.

    Only positions that are not the first of their n-gram can be repeats, so only those are walked. A first position
    that a repeat jumped over was never seen; `unseen` holds those until the walk meets the n-gram again.
    """
    grams = ngram_hashes(hashes, n)
    if len(np.unique(grams)) == len(grams):
        return 0
    _, first, inverse = np.unique(grams, return_index=True, return_inverse=True)
    is_first = first[inverse] == np.arange(len(grams))
    total = np.concatenate([[0], np.cumsum(lengths)])
    unseen: set[int] = set()
    resume = characters = 0
    for position in np.flatnonzero(~is_first).tolist():
        if position < resume:
            continue
        gram = int(inverse[position])
        if gram in unseen:
            unseen.discard(gram)
            continue
        resume = position + n
        characters += int(total[resume] - total[position])
        jumped = slice(position + 1, resume)
        unseen.update(inverse[jumped][is_first[jumped]].tolist())
    return characters
