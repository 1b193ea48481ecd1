"""Mixtures: shares of tokens within 1% at any point, every document of a part in turn, the same order again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.corpus.document import doc_id
from tasks.errors import ConfigError, DataError
from tasks.tokens.documents import CuratedDocument
from tasks.tokens.shards import TokenShards, write_token_shards
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.mixture import PERIOD, MixedDocuments, MixedOrder, pattern
from tasks.training.recipe import MixturePart, TokenizerStage
from tasks.training.stages.tokenizer import in_tiers

LENGTH = 16


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> TokenShards:
    """Documents of three sources in a jumble, one of them small, in two tiers."""
    draw, documents = np.random.default_rng(0), []
    for i in range(240):
        source = ("web", "web", "web", "books", "books", "code")[i % 6]
        text = f"{source} {i} " + " ".join(
            "abcdefgh"[j] * (1 + j % 3) for j in draw.integers(0, 8, draw.integers(5, 60))
        )
        tier = "high" if i % 4 == 0 else "low"
        documents.append(CuratedDocument(doc_id(text), text, source, "en", "prose", tier))
    folder = tmp_path_factory.mktemp("tokens")
    tokenizer = train_tokenizer([document.text for document in documents], 300, LENGTH)
    write_token_shards(
        folder, documents, tokenizer, tokenizer_hash="0", sequence_length=LENGTH, heldout_share=0.1, shard_tokens=1024
    )
    return TokenShards(folder, "train")


MIXTURE = (
    MixturePart(source="web", tier="high", weight=0.5),
    MixturePart(source="books", weight=0.3),
    MixturePart(source="code", weight=0.2),
)


def test_shares_are_within_one_percent(shards):
    """Over any run of 600 sequences, small parts gone through again and again."""
    source = MixedDocuments(shards, MIXTURE)
    order = MixedOrder(source, seed=1)
    for start in (0, 250, 990, 5000):
        tokens: dict[str, int] = {}
        for position in range(start, start + 600):
            for row in source.units(order.at(position)):
                name = source.documents["source"][int(row)].as_py()
                tokens[name] = tokens.get(name, 0) + 1
        shares = {name: count / sum(tokens.values()) for name, count in tokens.items()}
        assert shares == pytest.approx({"web": 0.5, "books": 0.3, "code": 0.2}, abs=0.01)


def test_a_recipe_gives_sources_their_tier():
    documents = [CuratedDocument(name, "text", name, "en", "prose", tier) for name, tier in (("web", ""), ("wiki", ""))]
    documents += [
        CuratedDocument("x", "text", "wiki", "en", "prose", "gold"),
        CuratedDocument("y", "t", "z", "en", "x"),
    ]
    found = [document.tier for document in in_tiers(documents, {"low": ("web", "forum"), "high": ("wiki",)})]
    assert found == ["low", "high", "gold", ""], "what the corpus says stays, and a source may have none"
    with pytest.raises(ValidationError, match="named more than once: web"):
        TokenizerStage(name="t", kind="tokenizer", tiers={"low": ("web",), "high": ("web",)})


def test_only_the_named_tier_is_taken(shards):
    source = MixedDocuments(shards, MIXTURE)
    rows = {int(row) for index in range(int(source.first[1])) for row in source.units(index)}
    tiers = {(source.documents["source"][row].as_py(), source.documents["tier"][row].as_py()) for row in rows}
    assert tiers == {("web", "high")}


def test_a_part_is_gone_through_whole_before_it_repeats(shards):
    source = MixedDocuments(shards, MIXTURE)
    order = MixedOrder(source, seed=3)
    code = [i for i in map(order.at, range(3000)) if i >= source.first[2]]
    size = source.streams[2].sequences
    epochs = [code[i : i + size] for i in range(0, 3 * size, size)]
    assert all(sorted(epoch) == list(range(int(source.first[2]), len(source))) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_stream_of_a_part_is_its_documents_one_after_another(shards):
    source = MixedDocuments(shards, MIXTURE)
    for number, stream in enumerate(source.streams):
        expected = [shards.read(int(start), int(start + size)) for start, size in _spans(source, stream.rows)]
        first, end = int(source.first[number]), int(source.first[number + 1])
        found = np.concatenate([source[i].ids for i in range(first, end)])
        assert np.array_equal(found, np.concatenate(expected))
        assert all(len(source[i].ids) == LENGTH for i in range(first, end - 1))


def _spans(source: MixedDocuments, rows: np.ndarray) -> list[tuple[int, int]]:
    starts, sizes = (source.documents[name].to_numpy() for name in ("start", "tokens"))
    return list(zip(starts[rows], sizes[rows], strict=True))


def test_any_position_can_be_asked_for(shards):
    source = MixedDocuments(shards, MIXTURE)
    forward = [MixedOrder(source, 2).at(position) for position in (0, 999, 1000, 123_456_789, 5)]
    order = MixedOrder(source, 2)
    assert [order.at(position) for position in (5, 123_456_789, 1000, 999, 0)] == forward[::-1]
    assert [MixedOrder(source, 3).at(i) for i in range(30)] != [order.at(i) for i in range(30)]


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=12))
def test_the_pattern_has_every_share(weights):
    places = pattern(weights)
    counts = np.bincount(places, minlength=len(weights))
    exact = np.array(weights) / sum(weights) * PERIOD
    assert len(places) == PERIOD and counts.min() >= 1
    assert np.abs(counts - exact).max() <= len(weights)


def test_documents_are_told_by_sequence(shards):
    source = MixedDocuments(shards, MIXTURE)
    identity, origin = source.name(int(source.units(0)[0]))
    assert origin == "web" and len(identity) == 32


@pytest.mark.parametrize(
    ("mixture", "error", "said"),
    [
        ((MixturePart(source="wbe", weight=1),), ConfigError, "no document is source wbe.*'web'"),
        ((MixturePart(source="web", weight=1), MixturePart(tier="high", weight=1)), DataError, "earlier part"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(shards, mixture, error, said):
    with pytest.raises(error, match=said):
        MixedDocuments(shards, mixture)


def test_a_part_must_name_something():
    with pytest.raises(ValueError, match="names a source"):
        MixturePart(weight=1)
