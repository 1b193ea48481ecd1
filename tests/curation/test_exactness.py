"""Recall and precision on real text, English and Chinese apart, against exact all-pairs Jaccard."""

from pathlib import Path

import pytest
from distributed import Client

from tests.curation.exactness import CONFIG, Measured, measure, real_texts, with_edits


@pytest.fixture(scope="module")
def results(
    shared_data: Path, in_process: Client, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Measured]:
    folder = tmp_path_factory.mktemp("exactness")
    return {
        language: measure(with_edits(real_texts(shared_data, language, 120), language), in_process, folder / language)
        for language in ("English", "Chinese")
    }


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_recall_in_every_bin_and_precision(results: dict[str, Measured], language: str) -> None:
    result = results[language]
    for low in range(80, 100, 5):
        assert result.pairs[low] >= 100
        assert result.recall(low, low + 1) >= 0.98
    assert result.rightly >= 0.99 * result.dropped
    assert result.agreed >= 0.98 * result.should
    assert result.dropped > result.texts / 4


def test_chinese_within_two_points_of_english(results: dict[str, Measured]) -> None:
    assert abs(results["English"].recall(80) - results["Chinese"].recall(80)) <= 0.02


@pytest.mark.parametrize("language", ["English", "Chinese"])
def test_nothing_is_dropped_from_real_texts_without_duplicates(
    shared_data: Path, in_process: Client, tmp_path: Path, language: str
) -> None:
    from tests.curation.clustering import cluster_texts

    glue = "" if language == "Chinese" else " "
    texts = [glue.join(units) for units in real_texts(shared_data, language, 500)]
    assert len(set(texts)) == len(texts) >= 300
    assert cluster_texts(in_process, tmp_path, texts, CONFIG) == []
