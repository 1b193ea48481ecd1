"""Token shards: nothing lost, nothing twice; packing that fills and keeps documents apart."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.corpus.document import doc_id
from tasks.errors import DataError
from tasks.tokens.documents import CuratedDocument, read_documents, split_of
from tasks.tokens.packing import best_fit, positions_of
from tasks.tokens.shards import TokenShards, write_token_shards
from tasks.tokens.tokenizer import train_tokenizer

LENGTH = 32


@pytest.fixture(scope="module")
def documents():
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text()[: 300 + 97 * i] for i, path in enumerate(sorted(folder.glob("c*.py")))]
    texts += ["短", "<|endoftext|>", "x" * 5000]
    return [CuratedDocument(doc_id(t), t, "stdlib", "en", "code") for t in dict.fromkeys(texts)]


@pytest.fixture(scope="module")
def tokenizer(documents):
    return train_tokenizer([document.text for document in documents], 600, LENGTH)


@pytest.fixture(scope="module")
def folder(documents, tokenizer, tmp_path_factory):
    target = tmp_path_factory.mktemp("tokens")
    write_token_shards(
        target,
        documents,
        tokenizer,
        tokenizer_hash="0",
        sequence_length=LENGTH,
        heldout_share=0.2,
        shard_tokens=20 * LENGTH + 5,
    )
    return target


def test_every_document_comes_back_from_the_stream(folder, documents, tokenizer):
    texts = {document.doc_id: document.text for document in documents}
    seen = []
    for split in ("train", "heldout"):
        shards, end = TokenShards(folder, split), 0
        for row in shards.documents().to_pylist():
            assert row["start"] == end, "documents must follow each other without a gap"
            end += row["tokens"]
            *ids, last = shards.read(row["start"], end).tolist()
            assert last == tokenizer.eos_token_id
            assert tokenizer.decode(ids) == texts[row["doc_id"]]
            assert split_of(row["doc_id"], 0.2) == split
            seen.append(row["doc_id"])
        assert end == shards.entry.tokens
    assert sorted(seen) == sorted(texts)


def test_counts_add_up(folder, documents):
    total = 0
    for split in ("train", "heldout"):
        shards = TokenShards(folder, split)
        sequences = [shards.sequence(i) for i in range(len(shards))]
        assert all(len(sequence) == LENGTH for sequence in sequences[:-1])
        stream = np.concatenate(sequences)
        assert len(stream) == shards.entry.tokens == sum(shard.tokens for shard in shards.entry.shards)
        assert np.array_equal(np.bincount(stream, minlength=600), shards.counts())
        assert shards.counts()[0] == shards.entry.documents
        total += shards.entry.bytes
    assert len(TokenShards(folder, "train").entry.shards) > 2
    assert total == sum(len(document.text.encode()) for document in documents)


def test_shard_size_does_not_change_the_stream(folder, documents, tokenizer, tmp_path):
    write_token_shards(tmp_path, documents, tokenizer, tokenizer_hash="0", sequence_length=LENGTH, heldout_share=0.2)
    one, many = TokenShards(tmp_path, "train"), TokenShards(folder, "train")
    assert len(one.entry.shards) == 1
    assert np.array_equal(one.read(0, one.entry.tokens), many.read(0, many.entry.tokens))


def test_shard_that_was_cut_is_refused(documents, tokenizer, tmp_path):
    write_token_shards(tmp_path, documents, tokenizer, tokenizer_hash="0", sequence_length=LENGTH, heldout_share=0.2)
    np.save(tmp_path / "train-00000.npy", np.load(tmp_path / "train-00000.npy")[:-1])
    with pytest.raises(DataError, match=r"train-00000.npy"):
        TokenShards(tmp_path, "train")


def test_missing_corpus_is_said(tmp_path):
    with pytest.raises(DataError, match="no artifact here"):
        next(read_documents(str(tmp_path)))


def test_positions_restart_with_each_document():
    assert positions_of(np.array([5, 6, 0, 7, 0, 0, 8]), end_of_text=0).tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert positions_of(np.array([], np.int64), end_of_text=0).tolist() == []


@given(st.lists(st.integers(1, 32), max_size=60))
def test_best_fit_places_every_item_once(lengths):
    bins = best_fit(lengths, 32)
    assert sorted(item for members in bins for item in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= 32 for members in bins)
    half_empty = sum(sum(lengths[i] for i in members) <= 16 for members in bins)
    assert half_empty <= 1, "two bins that are half empty would have been one"


def test_best_fit_refuses_what_cannot_fit():
    with pytest.raises(ValueError, match="capacity"):
        best_fit([33], 32)
