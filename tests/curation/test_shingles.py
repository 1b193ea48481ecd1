"""Shingles and signatures, with datasketch as the reference."""

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.curation.config import DedupConfig
from tasks.curation.shingles import as_minhash, jaccard, new_index, shingles, signature

CONFIG = DedupConfig()


def test_words_and_characters_decide_by_their_own_script() -> None:
    assert len(shingles("a b c d e f", CONFIG)) == 2
    assert len(shingles("一二三四五六七八九", CONFIG)) == 2
    assert len(shingles("one two 一二三四五六七八", CONFIG)) == 3  # at 'one', at 'two', at '一'


@pytest.mark.parametrize(
    "left, right, equal", [("猫", "狗", False), ("猫", "猫", True), ("a b", "a c", False), ("?", "!", False)]
)
def test_short_texts_compare_exactly(left: str, right: str, equal: bool) -> None:
    assert (jaccard(shingles(left, CONFIG), shingles(right, CONFIG)) == 1.0) is equal


def test_signature_is_datasketchs_own() -> None:
    found = shingles("the quick brown fox jumps over the lazy dog again and again " * 3, CONFIG)
    reference = MinHash(num_perm=CONFIG.permutations, seed=CONFIG.seed, hashfunc=int, scheme="affine32")
    for value in found:
        reference.update(int((value ^ (value >> np.uint64(32))) & np.uint64(0xFFFFFFFF)))
    assert np.array_equal(reference.hashvalues, signature(found, CONFIG))
    assert as_minhash(signature(found, CONFIG), CONFIG).jaccard(reference) == 1.0


def test_bands_favour_recall() -> None:
    index = new_index(CONFIG)
    assert 1 - (1 - 0.8**index.r) ** index.b >= 0.94


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1), st.lists(st.integers(0, 30), min_size=1))
def test_jaccard_against_sets(left: list[int], right: list[int]) -> None:
    expected = len(set(left) & set(right)) / len(set(left) | set(right))
    assert jaccard(np.unique(left), np.unique(right)) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_no_text_has_an_empty_signature(text: str) -> None:
    found = shingles(text, CONFIG)
    assert len(found) >= 1
    assert (np.diff(found.astype(object)) > 0).all()
