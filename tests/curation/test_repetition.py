"""Repetition signals against plain references that walk the text the slow way."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.curation.repetition import (
    duplicate_ngram_characters,
    duplicate_share,
    hash_tokens,
    ngram_hashes,
    top_ngram_characters,
)

tokens = st.lists(st.sampled_from(["a", "bb", "c", "ddd"]), max_size=60)


def arrays(found: list[str]) -> tuple[np.ndarray, np.ndarray]:
    return hash_tokens(found), np.array([len(token) for token in found], dtype=np.int64)


def slow_duplicates(found: list[str], n: int) -> int:
    seen: set[tuple[str, ...]] = set()
    position = characters = 0
    while position < len(found) - n + 1:
        gram = tuple(found[position : position + n])
        if gram in seen:
            characters += sum(map(len, gram))
            position += n
        else:
            seen.add(gram)
            position += 1
    return characters


@given(tokens, st.integers(2, 6))
def test_duplicate_ngrams(found: list[str], n: int) -> None:
    assert duplicate_ngram_characters(*arrays(found), n) == slow_duplicates(found, n)


@given(tokens, st.integers(2, 4))
def test_top_ngram(found: list[str], n: int) -> None:
    grams = [" ".join(found[i : i + n]) for i in range(len(found) - n + 1)]
    common = Counter(grams).most_common(1)  # of equally frequent ones, the first met
    expected = len(common[0][0]) * common[0][1] if common and common[0][1] > 1 else 0
    assert top_ngram_characters(*arrays(found), n) == expected


@given(tokens, st.integers(1, 6))
def test_equal_hashes_mean_equal_ngrams(found: list[str], n: int) -> None:
    hashes = ngram_hashes(hash_tokens(found), n)
    grams = [tuple(found[i : i + n]) for i in range(len(found) - n + 1)]
    assert len(set(hashes.tolist())) == len(set(grams)) and len(hashes) == len(grams)


def test_duplicate_share() -> None:
    assert duplicate_share(["a", "bb", "a", "bb", "bb"]) == (3, 5)
    assert duplicate_share([]) == (0, 0)
