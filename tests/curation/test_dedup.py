"""Survivors: cliques keep one, chains keep what the order says, nothing else is lost, however the work is divided."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.corpus.document import doc_id
from tasks.curation.config import DedupConfig
from tasks.curation.dedup import walk
from tasks.curation.dedup.shingles import jaccard, shingles, signature
from tests.curation.clustering import Lost, cluster_texts, find_duplicates, plan_texts
from tests.oracles.dedup import Member
from tests.oracles.dedup import find_duplicates as oracle

CONFIG = DedupConfig()
WORDS = [f"word{n}" for n in range(5000)]


def reference(texts: Sequence[str], config: DedupConfig = CONFIG, parts: int = 3) -> list[Lost]:
    """The same by one walk over datasketch's index."""
    parts = max(1, min(parts, len(texts)))
    members = [
        Member("s", n // parts, doc_id(text), len(text), "web", "", f"{n % parts:032x}", 0)
        for n, text in enumerate(texts)
    ]
    sets = {member: shingles(text, config) for member, text in zip(members, texts, strict=True)}
    signatures = np.array([signature(text, config) for text in texts]).reshape(-1, config.permutations)
    found = oracle(members, signatures, config, lambda wanted: {item: sets[item] for item in wanted})
    number = {member: n for n, member in enumerate(members)}
    lost = [Lost(number[i.member], number[i.survivor], i.rule.removeprefix("duplicate_"), i.similarity) for i in found]
    return sorted(lost, key=lambda item: item.number)


def document(seed: int, length: int = 200) -> list[str]:
    return random.Random(seed).choices(WORDS, k=length)


def edited(words: list[str], edits: int, seed: int) -> list[str]:
    out, noise = list(words), random.Random(seed)
    for position in noise.sample(range(len(out)), edits):
        out[position] = f"edit{seed}x{position}"
    return out


def families(number: int, seed: int = 0) -> list[str]:
    """Texts with more and more edited copies, exact copies among them, in a random order."""
    texts = []
    for family in range(number):
        base = document(seed + family, 40 + 7 * (family % 20))
        texts += [" ".join(edited(base, edits % len(base), family * 7 + edits)) for edits in (0, 1, 1, 2, 4, 8, 16)]
        texts += texts[-3:-1] * (family % 3 == 0)
    random.Random(seed).shuffle(texts)
    return texts


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_equal_to_one_walk_however_it_is_divided(in_process: Client, tmp_path: Path, parts: int) -> None:
    texts = families(40)
    found = cluster_texts(in_process, tmp_path, texts, parts=parts)
    assert found == reference(texts, parts=parts)
    assert len(found) > 100
    survivors = {(texts[item.number], texts[item.twin], item.similarity) for item in found}
    assert survivors == {(texts[item.number], texts[item.twin], item.similarity) for item in reference(texts)}


def test_a_component_larger_than_memory_is_walked_in_blocks(
    in_process: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = " ".join(WORDS[:60])
    texts = [f"{frame} {' '.join(edited(document(n // 4, 12), n % 4, n))}" for n in range(200)]
    config = DedupConfig(threshold=0.85)
    blocks = []
    inner = walk._Walker._blocks

    def small(self: walk._Walker, positions: np.ndarray, room: int) -> list[np.ndarray]:
        found = inner(self, positions, 700)
        blocks.append(len(found))
        return found

    monkeypatch.setattr(walk._Walker, "_blocks", small)
    found = cluster_texts(in_process, tmp_path, texts, config)
    assert max(blocks) > 10
    assert found == reference(texts, config)
    assert 20 < len(found) < 180


SNIPPETS = ["the cat sat on a mat", "数据质量决定模型的好坏", "x", "ไทย ไทย", "a b c d e f g", "\n\n"]
PIECES = st.lists(st.sampled_from(SNIPPETS))
TEXTS = st.lists(st.one_of(PIECES.map(" ".join), st.text(st.characters(exclude_categories=["Cs"]))), max_size=12)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, threshold=st.sampled_from([0.3, 0.5, 0.8]), parts=st.integers(1, 3))
def test_any_texts_equal_to_one_walk(
    in_process: Client, tmp_path_factory: pytest.TempPathFactory, texts: list[str], threshold: float, parts: int
) -> None:
    texts = [text for text in texts if text.strip("\ufeff \n") and text.strip() and "\0" not in text]
    if not texts:
        return
    config = DedupConfig(threshold=threshold, words=2, characters=2, permutations=32)
    found = cluster_texts(in_process, tmp_path_factory.mktemp("any"), texts, config, parts)
    assert found == reference(texts, config, parts)


def test_nothing_is_removed_from_different_documents(in_process: Client, tmp_path: Path) -> None:
    assert cluster_texts(in_process, tmp_path, [" ".join(document(seed)) for seed in range(200)]) == []


def test_each_of_a_thousand_cliques_of_three_keeps_one(in_process: Client, tmp_path: Path) -> None:
    texts = []
    for seed in range(1000):
        base = document(seed)
        texts += [" ".join(base), " ".join(edited(base, 1, seed)), " ".join(edited(base, 1, seed + 1000))]
    found = cluster_texts(in_process, tmp_path, texts)
    assert len(found) == 2000
    lost = {item.number for item in found}
    assert all(len(lost & {3 * n, 3 * n + 1, 3 * n + 2}) == 2 for n in range(1000))
    assert all(item.twin // 3 == item.number // 3 and item.twin not in lost for item in found)


def test_a_chain_may_keep_several(in_process: Client, tmp_path: Path) -> None:
    """a ~ b and b ~ c, but a and c are not similar: a and c stay, whatever the transitive link says."""
    config = DedupConfig(threshold=0.6, words=1)
    a, b, c = (" ".join(WORDS[start : start + 40]) for start in (0, 8, 16))
    sets = [shingles(text, config) for text in (a, b, c)]
    assert jaccard(sets[0], sets[1]) >= 0.6 > jaccard(sets[0], sets[2])
    texts = [a + " " * 2, b, c + " "]  # blanks make a the longest, then c: the order is a, c, b
    assert [item.number for item in cluster_texts(in_process, tmp_path, texts, config)] == [1]


def test_ten_thousand_documents_of_one_template_do_not_collapse(in_process: Client, tmp_path: Path) -> None:
    """They share bands by thousands, and neither are they dropped nor are they all compared with one another."""
    frame = " ".join(WORDS[:90])
    texts = [f"{frame} {' '.join(document(seed, 14))}" for seed in range(10_000)]
    sets = [shingles(text, CONFIG) for text in texts[:50]]
    alike = [jaccard(a, b) for n, a in enumerate(sets) for b in sets[:n]]
    assert min(alike) > 0.7 and max(alike) < 0.8
    assert cluster_texts(in_process, tmp_path, texts) == []


def test_short_texts_are_duplicates_only_when_equal(in_process: Client, tmp_path: Path) -> None:
    found = cluster_texts(in_process, tmp_path, ["猫", "狗", "猫", "a b", "a c"])
    assert [(item.number, item.rule, item.similarity) for item in found] in ([(2, "exact", 1.0)], [(0, "exact", 1.0)])


def test_a_thousand_copies_of_one_text_keep_one(in_process: Client, tmp_path: Path) -> None:
    text = " ".join(document(3))
    found = cluster_texts(in_process, tmp_path, [text] * 1000 + [" ".join(document(4))])
    assert [(item.number, item.twin, item.rule) for item in found] == [(n, 0, "exact") for n in range(1, 1000)]


def test_no_twin_is_itself_dropped(in_process: Client, tmp_path: Path) -> None:
    """A copy of a text that lost to a similar one names the survivor, with the verified similarity."""
    base = document(5)
    longer, shorter = " ".join([*base, "extra"]), " ".join(base)
    found = cluster_texts(in_process, tmp_path, [longer, shorter, shorter])
    assert [(item.number, item.twin, item.rule) for item in found] == [(1, 0, "near"), (2, 0, "near")]
    assert found[0].similarity == found[1].similarity < 1


def test_where_a_cap_acts_it_is_counted(in_process: Client, tmp_path: Path) -> None:
    base = document(1, 60)
    texts = [" ".join(edited(base, 1, seed)) for seed in range(40)]
    work, members = plan_texts(tmp_path, texts, DedupConfig(max_comparisons=2))
    assert find_duplicates(in_process, work, "document", members)["cut_short"] > 0
