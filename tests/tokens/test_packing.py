"""Packing: nothing lost, nothing seen by another conversation, less padding than first fit on real records."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.settings import REPOSITORY
from tasks.tokens.packing import best_fit
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.data import PackedConversations, collate
from tasks.training.importing import import_instructions
from tasks.training.instructions import read_instructions
from tasks.training.losses import IGNORED
from tasks.training.model import new_model
from tasks.training.recipe import ModelShape, SftStage
from tests.oracles.packing import first_fit, padding_share

DATA = REPOSITORY.parent / "shared" / "data" / "dev" / "sft"
VOCAB, LENGTH, PAD = 40, 24, 1


class Tokenizer:
    eos_token_id, pad_token_id = 0, PAD

    def __len__(self) -> int:
        return VOCAB


@pytest.fixture(scope="module")
def model() -> Any:
    shape = ModelShape(hidden_size=32, intermediate_size=64, layers=2, heads=4, key_value_heads=2, context=LENGTH)
    return new_model(shape, Tokenizer(), seed=3).eval()


@given(st.lists(st.integers(1, 50), max_size=60))
def test_every_item_lies_in_one_bin_that_holds_it(lengths):
    bins = best_fit(lengths, 50)
    assert sorted(item for some in bins for item in some) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in some) <= 50 for some in bins)
    assert len(bins) <= max(1, 2 * -(-sum(lengths) // 50)), "never more than twice what is needed"


CONVERSATION = st.lists(st.tuples(st.integers(2, VOCAB - 1), st.booleans()), min_size=1, max_size=LENGTH)


@settings(max_examples=40, deadline=None)
@given(st.lists(CONVERSATION, min_size=1, max_size=8))
@torch.inference_mode()
def test_packed_conversations_do_not_see_each_other(model, conversations):
    """Logits and labels of every conversation are those it has alone, to rounding, wherever it was packed."""
    items = [(np.array([i for i, _ in some]), np.array([marked for _, marked in some])) for some in conversations]
    bins = best_fit([len(ids) for ids, _ in items], LENGTH)
    source = PackedConversations([[items[i] for i in some] for some in bins], LENGTH)
    for number, some in enumerate(bins):
        batch = collate([source[number]], LENGTH, PAD)
        together = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits[0]
        start = 0
        for item in some:
            ids, mask = items[item]
            alone = model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0]
            assert torch.allclose(together[start : start + len(ids)], alone, atol=1e-5)
            labels = np.where(mask[1:], ids[1:], IGNORED).tolist()
            assert batch.labels[0, start : start + len(ids) - 1].tolist() == labels
            start += len(ids)
            assert batch.labels[0, start - 1] == IGNORED, "nothing is learnt across a boundary"


def test_less_padding_than_first_fit_on_real_records(tmp_path, record_property):
    """Real conversations of three sets, cut at 512 tokens as in training."""
    if not DATA.exists():
        pytest.skip(f"real samples are not here: {DATA}")
    for name in ("glaive_toolcall_en", "oasst_sft_zh", "sharegpt_zh_600"):
        import_instructions(str(DATA / f"{name}.jsonl.gz"), str(tmp_path))
    stage = SftStage(name="sft", kind="sft", steps=1, optimizer={"learning_rate": 1e-3})  # type: ignore[arg-type]
    records = read_instructions(str(tmp_path), stage).splits["train"]
    texts = ["\n".join(message["content"] for message in record.messages) for record in records]
    tokenizer = train_tokenizer(texts[:200], 4096, 512)
    lengths = [min(512, len(ids)) for ids in tokenizer(texts)["input_ids"]]
    best = padding_share(lengths, best_fit(lengths, 512), 512)
    first = padding_share(lengths, first_fit(lengths, 512), 512)
    alone = padding_share(lengths, [[i] for i in range(len(lengths))], 512)
    record_property("padding", {"best fit": best, "first fit": first, "one a sequence": alone})
    print(f"padding of {len(lengths)} conversations: best fit {best:.4f}, first fit {first:.4f}, apart {alone:.4f}")
    assert best <= first < alone
