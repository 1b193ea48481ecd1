"""Mixtures within 1% on real records, in an order that any rank and any resumed run repeats; curricula; wordings."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import ConfigError, DataError
from tasks.settings import REPOSITORY
from tasks.tokens.shards import TokenShards
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.augmentation import augmented
from tasks.training.companions import curriculum_weights
from tasks.training.data import PackedConversations
from tasks.training.importing import import_instructions
from tasks.training.instructions import grouped, pack_conversations, read_instructions
from tasks.training.recipe import SftStage
from tasks.training.sampling import REPLAY, Joined, TuningLoader, WeightedOrder, replay_source, weights_of
from tasks.training.tuning import STANDARD_MIXTURE, Augmentation, Curriculum
from tests.training.tuning_data import LENGTH, make_parent, make_records

DATA = REPOSITORY.parent / "shared" / "data" / "dev"
REAL = {  # a category of the standard mixture, and a real set for it
    "general": "sft/fastchat_dummy_multi_turn",
    "code": "sft/glaive_toolcall_en",
    "reasoning": "sft/gsm8k_train",
    "creative": "sft/sharegpt_zh_600",
    "refusals": "sft/oasst_sft_zh",
}


def stage(**changes: Any) -> SftStage:
    values = {"steps": 10_000, "epochs": 1, "processes": 2, "micro_batch": 2, "sequence_length": LENGTH} | changes
    return SftStage(name="sft", kind="sft", optimizer={"learning_rate": 1e-3}, **values)


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    return Path(make_parent(tmp_path_factory.mktemp("parent")))


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> str:
    return make_records(tmp_path_factory.mktemp("records"))


def joined(config: SftStage, uri: str, parent: Path) -> Joined:
    tokenizer = load_tokenizer(parent)
    found = read_instructions(uri, config)
    groups = grouped(found.splits, config)["train"]
    parts: dict[str, Any] = {
        name: pack_conversations(some, tokenizer, config.sequence_length, found.counts) for name, some in groups.items()
    }
    shards = TokenShards(parent.parent / "tokenizer" / "tokens", "train")
    return Joined(parts | {REPLAY: replay_source(shards, len(tokenizer), config.sequence_length)})


def loader_of(source: Joined, config: SftStage, rank: int = 0) -> TuningLoader:
    order = WeightedOrder(source, weights_of(source.parts, config), config.seed)
    return TuningLoader(source, config, rank=rank, pad=1, order=order)


def test_standard_mixture_within_one_percent(parent, tmp_path):
    """Five real sets of very different sizes and lengths, 5% replay beside them: every share of tokens within 1%."""
    if not DATA.exists():
        pytest.skip(f"real samples are not here: {DATA}")
    for category, name in REAL.items():
        import_instructions(str(DATA / f"{name}.jsonl.gz"), str(tmp_path), category=category)
    config = stage(mixture="standard", max_records=1500, sequence_length=256)
    source = joined(config, str(tmp_path), parent)
    loader = loader_of(source, config)
    shares = loader.shares_of_tokens(150)
    expected = {name: share * 0.95 for name, share in STANDARD_MIXTURE.items()} | {REPLAY: 0.05}
    assert shares == pytest.approx(expected, abs=0.01)
    assert max(abs(shares[name] - expected[name]) for name in expected) < 0.005, "and in fact far closer"


def test_ranks_share_and_resumed_runs_repeat_the_order(parent, records):
    config = stage(mixture={"general": 0.7, "code": 0.3})
    source = joined(config, records, parent)
    ranks = [loader_of(source, config, rank) for rank in range(2)]
    ranks[0].order.reweigh({"general": 0.5, "code": 0.45, REPLAY: 0.05})
    ranks[1].order.reweigh({"general": 0.5, "code": 0.45, REPLAY: 0.05})
    first = [ranks[0].indices(window) for window in range(6)]
    assert [ranks[1].indices(window) for window in range(6)] == first
    ranks[0].order.reweigh({"general": 0.1, "code": 0.85, REPLAY: 0.05})
    state = ranks[0].order.state()
    later = [ranks[0].indices(window) for window in range(6, 20)]
    again = loader_of(source, config)
    again.order.restore(state)
    assert [again.indices(window) for window in range(6, 20)] == later
    assert [again.indices(window) for window in range(6)] == first, "what was drawn before a change stays as it was"
    shares = [sum(source.part_of(i) == "code" for w in some for i in w) for some in (first, later)]
    assert shares[0] / (6 * 4) < 0.6 and shares[1] / (14 * 4) > 0.8, "and the change took effect"


def test_an_epoch_is_as_much_as_the_records_hold(parent, records):
    config = stage(epochs=2)
    loader = loader_of(joined(config, records, parent), config)
    sequences = len(loader.source.parts["instructions"])
    assert loader.steps == np.ceil(2 * sequences / 0.95 / 4)
    seen = [i for window in range(loader.steps) for i in loader.indices(window) if i < sequences]
    counts = np.bincount(seen, minlength=sequences)
    assert 1 <= counts.min() <= counts.max() <= 3, "every record about twice"


def test_replayed_documents_do_not_run_together(parent, records):
    """Every token of replay is labelled from its own document, and documents keep their names."""
    source = joined(stage(), records, parent)
    first = int(source.first[source.names.index(REPLAY)])
    for index in range(first, first + 20):
        sequence, units = source[index], source.units(index)
        starts = np.flatnonzero(np.diff(units, prepend=-1))
        assert np.array_equal(np.flatnonzero(sequence.positions == 0), starts)
        assert not sequence.supervised[starts].any()
        assert source.name(int(units[0]))[1] == "stdlib"


def test_missing_category_names_those_there_are(records, tmp_path):
    config = stage(mixture="standard")
    with pytest.raises(DataError, match=r"no record is of category creative, reasoning, refusals; there are: code \("):
        grouped(read_instructions(records, config).splits, config)


def test_difficulty_is_cut_at_the_thirds(records):
    config = stage(curriculum={"by": "difficulty"})
    groups = grouped(read_instructions(records, config).splits, config)
    sizes = {name: [len(c.messages[1]["content"]) for c in some] for name, some in groups["train"].items()}
    assert max(sizes["easy"]) < min(sizes["medium"]) and max(sizes["medium"]) < min(sizes["hard"])
    counts = [len(some) for some in sizes.values()]
    assert min(counts) > 0.25 * sum(counts)
    assert set(groups["heldout"]) == {"easy", "medium", "hard"}


def test_replay_of_another_vocabulary_is_refused(parent):
    with pytest.raises(ConfigError, match="replay: 0"):
        replay_source(TokenShards(parent.parent / "tokenizer" / "tokens", "train"), 599, LENGTH)


LOSSES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.01, 20), max_size=3)


@given(LOSSES, st.floats(0.1, 4), st.floats(1.1, 8))
def test_curriculum_weights_keep_their_promises(losses, strength, limit):
    base = {"a": 0.5, "b": 0.3, "c": 0.15, REPLAY: 0.05}
    weights = curriculum_weights(base, losses, Curriculum(strength=strength, limit=limit))
    assert sum(weights.values()) == pytest.approx(1)
    assert weights[REPLAY] == 0.05
    ratios = [weights[name] / base[name] for name in "abc"]
    assert max(ratios) / min(ratios) <= limit**2 * (1 + 1e-9)
    known = sorted(losses, key=lambda name: losses[name])
    order = [weights[name] / base[name] for name in known]
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(order))


def test_change_a_loss_and_the_mix_moves():
    base = {"code": 0.6, "general": 0.4}
    even = curriculum_weights(base, {"code": 2.0, "general": 2.0}, Curriculum())
    hard = curriculum_weights(base, {"code": 2.0, "general": 4.0}, Curriculum())
    assert even == pytest.approx(base)
    assert hard["general"] == pytest.approx(0.4 * (4 / 3) / (0.4 * 4 / 3 + 0.6 * 2 / 3))


def test_augmentation_rewords_questions_alone(records):
    conversations = read_instructions(records, stage()).splits["train"]
    changed = augmented(conversations, Augmentation(share=0.5), seed=3)
    pairs = list(zip(conversations, changed, strict=True))
    assert all(old.messages[1] == new.messages[1] and old.id == new.id for old, new in pairs)
    different = sum(old.messages[0] != new.messages[0] for old, new in pairs)
    assert 0.35 < different / len(pairs) < 0.6
    assert [c.messages for c in augmented(conversations, Augmentation(share=0.5), seed=3)] == [
        c.messages for c in changed
    ]
    assert augmented(conversations, None, seed=3) is conversations


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=3, max_size=40), st.lists(st.floats(0.05, 1), min_size=3, max_size=3))
def test_no_share_is_off_by_more_than_a_few_sequences(lengths, raw):
    """Whatever the lengths of sequences and the weights: tokens drawn stay within two sequences of their share."""
    length = 12
    parts = {}
    for name, sizes in zip("abc", (lengths[::3], lengths[1::3], lengths[2::3]), strict=True):
        mask = [np.ones(size, bool) for size in sizes]
        parts[name] = PackedConversations([[(np.zeros(len(m), np.int64), m)] for m in mask], length)
    weights = {name: weight / sum(raw) for name, weight in zip("abc", raw, strict=True)}
    source = Joined(parts)
    order = WeightedOrder(source, weights, seed=0)
    drawn = dict.fromkeys("abc", 0)
    for position in range(120):
        index = order.at(position)
        drawn[source.part_of(index)] += len(source[index].ids)
        total = sum(drawn.values())
        assert all(abs(drawn[name] - weights[name] * total) <= 2 * length for name in drawn)
