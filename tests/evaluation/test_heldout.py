"""Held-out losses, intervals and the unigram baseline against plain re-computation."""

import numpy as np
import pytest
import torch

from tasks.evaluation.fertility import fertility
from tasks.evaluation.heldout import Losses, heldout_losses, unigram_loss
from tasks.tokens.documents import CuratedDocument
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.data import PackedConversations


def conversations() -> PackedConversations:
    """Two sequences; three conversations of known ids, the assistant speaks in the second half of each."""

    def one(*ids: int) -> tuple[np.ndarray, np.ndarray]:
        return np.array(ids), np.arange(len(ids)) >= len(ids) // 2

    return PackedConversations([[one(2, 3, 4, 5), one(6, 7)], [one(2, 2, 3, 3, 3)]], 8)


def test_unigram_loss_equals_numpy():
    counts = np.array([0, 0, 9, 4, 3, 2, 1, 0])
    losses = heldout_losses(conversations(), 1, unigram_loss(counts))
    chance = (counts + 1) / (counts + 1).sum()
    expected = [[4, 5], [7], [3, 3, 3]]
    assert losses.tokens.tolist() == [2, 1, 3]
    assert losses.sums == pytest.approx([-np.log(chance[ids]).sum() for ids in expected])
    assert losses.mean == pytest.approx(-np.log(chance[[4, 5, 7, 3, 3, 3]]).mean())


def test_units_get_their_own_losses():
    """A loss that is the position in the sequence tells which token each unit was charged for."""
    losses = heldout_losses(conversations(), 1, lambda batch: torch.arange(8.0).expand(len(batch.labels), 8))
    assert losses.sums.tolist() == [1 + 2, 4, 1 + 2 + 3], "the loss of token t is charged at place t - 1"


def test_interval_covers_the_mean_and_narrows():
    draw = np.random.default_rng(0)
    few, many = (Losses(draw.gamma(4.0, 5.0, n), np.full(n, 10)) for n in (20, 2000))
    for losses in (few, many):
        low, high = losses.interval()
        assert low < losses.mean < high
        assert losses.interval() == (low, high)
    assert np.diff(many.interval()) < np.diff(few.interval()) / 5


def test_interval_leaves_units_without_tokens_out():
    losses = Losses(np.array([2.0, 0.0]), np.array([2, 0]))
    assert losses.interval() == (1.0, 1.0)


def test_fertility_by_hand():
    tokenizer = train_tokenizer(["aaaa bbbb " * 50, "猫狗" * 50], 264, 64)
    documents = [
        CuratedDocument("1", "aaaa bbbb aaaa", "s", "en", "prose"),
        CuratedDocument("2", "猫狗 猫", "s", "zh", "prose"),
        CuratedDocument("3", "aaaa", "s", "en", "code"),
    ]
    metrics = fertility(documents, tokenizer)
    ids = {document.doc_id: len(tokenizer(document.text)["input_ids"]) for document in documents}
    assert metrics["fertility_en"] == pytest.approx(ids["1"] / 3, abs=1e-4)
    assert metrics["fertility_zh"] == pytest.approx(ids["2"] / 3, abs=1e-4)
    assert metrics["bytes_per_token_zh"] == pytest.approx(10 / ids["2"], abs=1e-4)
    assert metrics["fertility_code"] == pytest.approx(ids["3"], abs=1e-4)
    assert metrics["roundtrip_failures"] == 0 and metrics["roundtrip_documents"] == 3
