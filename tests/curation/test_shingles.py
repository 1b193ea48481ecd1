"""Shingles and signatures, with datasketch as the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.curation.config import DedupConfig
from tasks.curation.dedup.shingles import as_minhash, bands_and_rows, jaccard, new_index, shingles, signature
from tasks.curation.dedup.units import band_hashes
from tests.oracles import shingles as oracle

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


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    st.lists(st.sampled_from(["the", "Straße", "猫が", "数据质量", "İ", "_a1", "ไทย", "\U00020000"])).map(" ".join),
    st.text(st.sampled_from("ab 数据、的"), max_size=120),
)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(1, 6), st.integers(1, 9))
def test_kernels_equal_plain_python_and_datasketch(text: str, words: int, characters: int) -> None:
    config = DedupConfig(words=words, characters=characters, permutations=32)
    assert set(shingles(text, config).tolist()) == oracle.shingles(text, config)
    assert np.array_equal(signature(text, config), oracle.signature(text, config))


def test_datasketch_reads_the_signatures() -> None:
    left, right = "one two three four five six seven eight", "one two three four five six seven nine"
    sketches = [as_minhash(signature(text, CONFIG), CONFIG) for text in (left, right)]
    exact = jaccard(shingles(left, CONFIG), shingles(right, CONFIG))
    assert sketches[0].jaccard(sketches[1]) == pytest.approx(exact, abs=0.2)


def test_bands_favour_recall() -> None:
    index = new_index(CONFIG)
    assert 1 - (1 - 0.8**index.r) ** index.b >= 0.998


def test_bands_are_datasketchs() -> None:
    """Two signatures share a band hash exactly when one is found by the other in datasketch's index."""
    words = [f"word{n}" for n in range(200)]
    texts = [" ".join(words[:keep] + [f"other{keep}x{n}" for n in range(200 - keep)]) for keep in range(0, 200, 4)]
    signatures = np.array([signature(text, CONFIG) for text in texts])
    hashes = band_hashes(signatures, *bands_and_rows(CONFIG))
    index = new_index(CONFIG)
    for number, values in enumerate(signatures):
        index.insert(number, as_minhash(values, CONFIG))
    found = [sorted(index.query(as_minhash(values, CONFIG))) for values in signatures]
    assert found == [np.flatnonzero((hashes == own).any(axis=1)).tolist() for own in hashes]
    assert 1 < max(map(len, found)) < len(texts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1), st.lists(st.integers(0, 30), min_size=1))
def test_jaccard_against_sets(left: list[int], right: list[int]) -> None:
    expected = len(set(left) & set(right)) / len(set(left) | set(right))
    assert jaccard(np.unique(left), np.unique(right)) == pytest.approx(expected)


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_no_text_has_an_empty_signature(text: str) -> None:
    found = shingles(text, CONFIG)
    assert len(found) >= 1
    assert (found[1:] > found[:-1]).all()
