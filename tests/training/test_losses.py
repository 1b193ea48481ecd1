"""Losses, schedules and batches against plain re-computation."""

import itertools
import math

import numpy as np
import pytest
import torch

from tasks.tokens.packing import positions_of
from tasks.training.data import Batch, Loader, PackedConversations, Sequence, collate
from tasks.training.losses import IGNORED, causal_loss, token_losses
from tasks.training.recipe import ModelShape, Optimizer, PretrainStage
from tasks.training.schedule import learning_rate

VOCAB, LENGTH, END, PAD = 50, 16, 0, 1


class Tokenizer:
    """What a model needs to know of a tokenizer."""

    eos_token_id, pad_token_id = END, PAD

    def __len__(self) -> int:
        return VOCAB


@pytest.fixture(scope="module")
def model():
    from tasks.training.model import new_model

    shape = ModelShape(hidden_size=32, intermediate_size=64, layers=2, heads=4, key_value_heads=2, context=LENGTH)
    return new_model(shape, Tokenizer(), seed=3).eval()


def logits_of(model, batch: Batch) -> torch.Tensor:
    return model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits


def packed(*documents: list[int]) -> Sequence:
    ids = np.concatenate([np.array(document) for document in documents])
    positions = positions_of(ids, END)
    return Sequence(ids, positions, positions > 0)


def random_sequences(count: int, seed: int) -> list[Sequence]:
    """Sequences of two documents each, of very different lengths."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(2, LENGTH // 2, size=(count, 2))
    return [packed(*([*draw.integers(2, VOCAB, size=n - 1), END] for n in pair)) for pair in lengths]


def test_packed_logits_equal_separate_ones(model):
    documents = [[7, 8, 9, 10, END], [11, 12, END], [13, 14, 15, 16, 17, END]]
    together = logits_of(model, collate([packed(*documents)], LENGTH, PAD))[0]
    start = 0
    for document in documents:
        alone = logits_of(model, collate([packed(document)], len(document), PAD))[0]
        assert torch.allclose(together[start : start + len(document)], alone, atol=1e-6)
        start += len(document)


def test_labels_stay_inside_a_document():
    batch = collate([packed([7, 8, END], [9, END])], 8, PAD)
    assert batch.labels.tolist() == [[8, END, IGNORED, END, IGNORED, IGNORED, IGNORED, IGNORED]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert (batch.tokens, batch.supervised) == (5, 3)


def test_loss_is_the_mean_over_tokens(model):
    batch = collate(random_sequences(3, 0), LENGTH, PAD)
    logits = logits_of(model, batch).detach()
    expected = []
    for row, column in np.argwhere(batch.labels.numpy() != IGNORED):
        scores = logits[row, column].double().numpy()
        expected.append(np.log(np.exp(scores).sum()) - scores[batch.labels[row, column]])
    assert causal_loss(logits, batch.labels, batch.supervised).item() == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_accumulation_does_not_change_the_gradient(model, parts):
    """8×1 = 4×2 = 2×4 = 1×8, with sequences of unequal length: the divisor is the whole step's."""
    sequences = random_sequences(8, 1)
    total = collate(sequences, LENGTH, PAD).supervised

    def gradient(size: int) -> torch.Tensor:
        model.zero_grad()
        for start in range(0, 8, size):
            batch = collate(sequences[start : start + size], LENGTH, PAD)
            causal_loss(logits_of(model, batch), batch.labels, total).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    assert torch.allclose(gradient(8 // parts), gradient(8), atol=1e-7)


def test_fully_masked_micro_batch_gives_zero(model):
    batch = collate([packed([END])], LENGTH, PAD)
    model.zero_grad()
    loss = causal_loss(logits_of(model, batch), batch.labels, batch.supervised)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    assert not token_losses(logits_of(model, batch), batch.labels).any()


def test_schedule_points():
    optimizer = Optimizer(learning_rate=1.0, final_share=0.1, warmup_steps=4)
    rates = [learning_rate(step, 105, optimizer) for step in range(105)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[54] == pytest.approx(0.55), "half way between peak and end"
    assert rates[104] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert learning_rate(0, 1, optimizer) == 1.0, "a run of one step has no warm-up"


def test_wsd_points():
    """Warm-up, plateau at the peak, straight decay over the last fifth (Hu et al. 2024)."""
    optimizer = Optimizer(learning_rate=1.0, final_share=0.1, warmup_steps=4, schedule="wsd", decay_share=0.2)
    rates = [learning_rate(step, 101, optimizer) for step in range(101)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:81] == pytest.approx([1.0] * 77)
    assert [rates[80], rates[85], rates[90], rates[100]] == pytest.approx([1.0, 0.775, 0.55, 0.1])
    assert learning_rate(0, 1, optimizer) == 1.0


def test_constant_rate():
    optimizer = Optimizer(learning_rate=1.0, warmup_steps=2, schedule="constant")
    rates = [learning_rate(step, 10, optimizer) for step in range(10)]
    assert rates == pytest.approx([1 / 3, 2 / 3, *[1.0] * 8])


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
@pytest.mark.parametrize("warmup", [0, 1, 10, 60])
def test_rates_stay_between_nothing_and_the_peak(schedule, steps, warmup):
    optimizer = Optimizer(learning_rate=0.5, warmup_steps=warmup, schedule=schedule)
    rates = [learning_rate(step, steps, optimizer) for step in range(steps)]
    assert all(0 < rate <= 0.5 for rate in rates) and max(rates) == pytest.approx(0.5)


class Numbers(PackedConversations):
    """A source of `count` one-token sequences, each its own index."""

    def __init__(self, count: int) -> None:
        one = np.ones(1, bool)
        super().__init__([[(np.array([i]), one)] for i in range(count)], 1)


def stage(**changes) -> PretrainStage:
    values = {"processes": 2, "micro_batch": 2, "accumulation": 2, "steps": 100, "epochs": 2} | changes
    return PretrainStage(name="p", kind="pretrain", optimizer=Optimizer(learning_rate=0.1), **values)


def test_ranks_share_a_step_without_overlap():
    source, config = Numbers(50), stage()
    ranks = [Loader(source, config, rank=rank, pad=0) for rank in range(2)]
    assert [len(loader.step(3)) for loader in ranks] == [2, 2]
    seen = [int(i) for loader in ranks for batch in loader.step(3) for i in batch.input_ids.flatten()]
    assert sorted(seen) == sorted(ranks[0].indices(3)) and len(set(seen)) == 8


def test_every_epoch_is_another_permutation():
    loader = Loader(Numbers(24), stage(), rank=0, pad=0)
    first, second = ([i for step in range(3 * e, 3 * e + 3) for i in loader.indices(step)] for e in range(2))
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    assert loader.steps == math.ceil(2 * 24 / 8)


def test_any_step_can_be_asked_for():
    loader = Loader(Numbers(10), stage(), rank=1, pad=0)
    forward = [loader.indices(step) for step in range(6)]
    again = Loader(Numbers(10), stage(), rank=1, pad=0)
    assert [again.indices(step) for step in reversed(range(6))] == forward[::-1]


def test_a_batch_is_no_longer_than_its_longest_sequence():
    source = PackedConversations([[(np.arange(n), np.ones(n, bool))] for n in (2, 5, 3)], 9)
    loader = Loader(source, stage(), rank=0, pad=PAD)
    assert loader.batch([0, 2]).input_ids.tolist() == [[0, 1, PAD], [0, 1, 2]]
    assert loader.batch([0, 1]).labels.shape == (2, 5)
    assert loader.batch([]).supervised == 0


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize(("tokens", "size"), [(8, 3), (7, 2), (1, 4), (16, 16)])
def test_a_batch_in_tokens_is_the_same_on_any_number_of_ranks(world, tokens, size):
    """Each window's sequences once, whoever takes them; as many micro-batches on every rank, some of them empty."""
    config = stage(accumulation=1, micro_batch=size, batch_tokens=tokens)
    loaders = [Loader(Numbers(50), config, rank=rank, world=world, pad=0) for rank in range(world)]
    for window in (0, 3):
        shares = [loader.shares(window) for loader in loaders]
        assert len({len(share) for share in shares}) == 1
        assert all(len(part) <= size for share in shares for part in share)
        seen = [index for share in shares for part in share for index in part]
        assert sorted(seen) == sorted(loaders[0].indices(window)) and len(seen) == tokens
    empty = loaders[0].batch([])
    assert (empty.tokens, empty.supervised, len(empty.labels)) == (0, 0, 1)


def test_a_step_is_said_in_one_way():
    with pytest.raises(ValueError, match="leave one of them out"):
        stage(accumulation=2, batch_tokens=1024)
