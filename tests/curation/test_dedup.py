"""Survivors: cliques keep one, chains keep what the order says, nothing else is lost, in any order of arrival."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from tasks.corpus.document import doc_id
from tasks.curation.config import DedupConfig
from tasks.curation.dedup import Duplicate, Member, find_duplicates
from tasks.curation.shingles import jaccard, shingles, signature

CONFIG = DedupConfig()
WORDS = [f"word{n}" for n in range(5000)]


def member(text: str, row: int, shard: str = "s") -> Member:
    return Member(shard, row, doc_id(text), len(text), "src", "", shard, 0)


def run(texts: Sequence[str], config: DedupConfig = CONFIG) -> list[Duplicate]:
    members = [member(text, row) for row, text in enumerate(texts)]
    sets = {item: shingles(text, config) for item, text in zip(members, texts, strict=True)}
    signatures = np.array([signature(text, config) for text in texts]).reshape(-1, config.permutations)
    return find_duplicates(members, signatures, config, lambda wanted: {item: sets[item] for item in wanted})


def document(seed: int, length: int = 200) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def edited(words: list[str], edits: int, seed: int) -> list[str]:
    out, noise = list(words), random.Random(seed)
    for position in noise.sample(range(len(out)), edits):
        out[position] = f"edit{seed}x{position}"
    return out


def test_nothing_is_removed_from_different_documents() -> None:
    assert run([" ".join(document(seed)) for seed in range(200)]) == []


def test_each_clique_of_three_keeps_one() -> None:
    texts = []
    for seed in range(100):
        base = document(seed)
        texts += [" ".join(base), " ".join(edited(base, 1, seed)), " ".join(edited(base, 1, seed + 1000))]
    found = run(texts)
    assert len(found) == 200
    lost = {duplicate.member.row for duplicate in found}
    assert all(len(lost & {3 * n, 3 * n + 1, 3 * n + 2}) == 2 for n in range(100))
    assert all(duplicate.survivor.row // 3 == duplicate.member.row // 3 for duplicate in found)


def test_equal_texts_share_an_id_and_keep_the_first_in_the_order() -> None:
    text = " ".join(document(1))
    found = run([text, "something else entirely", text, text])
    assert [(item.rule, item.similarity, item.survivor.row) for item in found] == [("duplicate_exact", 1.0, 0)] * 2


def test_a_chain_may_keep_several() -> None:
    """a ~ b and b ~ c, but a and c are not similar: a and c stay, whatever the transitive link says."""
    config = DedupConfig(threshold=0.6, words=1)
    a, b, c = (" ".join(WORDS[start : start + 40]) for start in (0, 8, 16))
    sets = [shingles(text, config) for text in (a, b, c)]
    assert jaccard(sets[0], sets[1]) >= 0.6 > jaccard(sets[0], sets[2])
    texts = [a + " " * 2, b, c + " "]  # blanks make a the longest, then c: the order is a, c, b
    found = run(texts, config)
    assert [item.member.row for item in found] == [1]


def test_templates_with_different_facts_do_not_collapse() -> None:
    frame = " ".join(WORDS[:30])
    texts = [f"{frame} {' '.join(document(seed, 30))}" for seed in range(500)]
    assert run(texts) == []


def test_survivors_do_not_depend_on_the_order_of_arrival() -> None:
    texts = []
    for seed in range(40):
        base = document(seed, 120)
        texts += [" ".join(edited(base, edits, seed * 7 + edits)) for edits in range(5)]
    reference = None
    for shuffle in range(4):
        order = list(range(len(texts)))
        random.Random(shuffle).shuffle(order)
        found = {(item.member.doc_id, item.survivor.doc_id, item.similarity) for item in run([texts[n] for n in order])}
        reference = reference or found
        assert found == reference
    assert reference


def test_every_drop_is_verified_and_no_similar_survivors_remain() -> None:
    texts = []
    for seed in range(60):
        base = document(seed, 150)
        texts += [" ".join(edited(base, edits, seed * 11 + edits)) for edits in (0, 1, 2, 4, 8)]
    sets = [shingles(text, CONFIG) for text in texts]
    found = run(texts)
    lost = {item.member.row for item in found}
    for item in found:
        assert jaccard(sets[item.member.row], sets[item.survivor.row]) == pytest.approx(item.similarity)
        assert item.similarity >= 0.8
        assert item.survivor.order < item.member.order
        assert item.survivor.row not in lost
    kept = [row for row in range(len(texts)) if row not in lost]
    missed = [(a, b) for a in kept for b in kept if a < b and jaccard(sets[a], sets[b]) >= 0.8]
    pairs = [(a, b) for a in range(len(texts)) for b in range(a + 1, min(a + 5, len(texts)))]
    similar = sum(jaccard(sets[a], sets[b]) >= 0.8 for a, b in pairs)
    assert len(missed) <= 0.1 * similar


def test_no_twin_is_itself_dropped() -> None:
    """A copy of a text that lost to a similar one names the survivor, with the verified similarity."""
    base = document(5)
    longer, shorter = " ".join([*base, "extra"]), " ".join(base)
    found = run([longer, shorter, shorter])
    assert [(item.member.row, item.survivor.row, item.rule) for item in found] == [
        (1, 0, "duplicate_near"),
        (2, 0, "duplicate_near"),
    ]
    assert found[0].similarity == found[1].similarity < 1
