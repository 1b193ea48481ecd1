"""Wording and turns, measured on real small models: a sound child shows nothing, spoilt ones show their symptom."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from tasks.evaluation.answers import ByTurn, measure_turns, measure_wording
from tasks.evaluation.outputs import output_symptoms
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.data import collate
from tasks.training.instructions import Conversation, pack_conversations
from tasks.training.losses import IGNORED
from tasks.training.model import load_model
from tests.training.tuning_data import LENGTH, make_parent

NAMES = [
    f"{verb}_{noun}"
    for verb in ("get", "set", "add", "read", "find", "join")
    for noun in ("name", "path", "file", "line")
]
PLAIN, LATER = "it will return the name of the file", "no it will not"
JARGON = "idempotent memoization circumvents polymorphic marshalling"
NOISE = "xq zw xq zw xq"


def records(first: str, later: str) -> list[Conversation]:
    return [
        Conversation(
            name,
            [
                {"role": "user", "content": f"{name}?"},
                {"role": "assistant", "content": first},
                {"role": "user", "content": "fail?"},
                {"role": "assistant", "content": later},
            ],
            "made",
            "general",
        )
        for name in NAMES
    ]


def tuned(pair: tuple[Any, Any], some: list[Conversation], steps: int) -> Any:
    """A copy of the model after some steps of AdamW on packed conversations."""
    model, tokenizer = pair
    child = copy.deepcopy(model).train()
    source = pack_conversations(some, tokenizer, 2 * LENGTH, Counter())
    batch = collate([source[i] for i in range(len(source))], source.length, tokenizer.pad_token_id)
    optimizer = torch.optim.AdamW(child.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = child(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return child.eval()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model that has learnt to answer plainly, but not to the end, and its tokenizer."""
    torch.manual_seed(0)
    folder = make_parent(tmp_path_factory.mktemp("parent"))
    tokenizer = load_tokenizer(folder)
    return tuned((load_model(folder), tokenizer), records(PLAIN, LATER), 40), tokenizer


def figures(child: Any, parent: tuple[Any, Any]) -> dict[str, Any]:
    model, tokenizer = parent
    heldout = records(PLAIN, LATER)
    return {
        **measure_wording(child, model, tokenizer, heldout),
        **measure_turns(child, model, tokenizer, heldout, 2 * LENGTH),
    }


def events(metrics: dict[str, Any]) -> list[str]:
    return [found.event for found in output_symptoms(metrics)]


def test_a_sound_child_shows_nothing(parent):
    metrics = figures(tuned(parent, records(PLAIN, LATER), 20), parent)
    assert events(metrics) == []
    assert set(metrics["heldout_loss_by_turn"]) == {"1", "2"}
    assert all(
        loss < metrics["parent_heldout_loss_by_turn"][turn] for turn, loss in metrics["heldout_loss_by_turn"].items()
    )
    assert metrics["rare_words"] <= 1.5 * metrics["reference_rare_words"]


@pytest.mark.slow
def test_a_child_that_learnt_jargon(parent):
    metrics = figures(tuned(parent, records(JARGON, LATER), 80), parent)
    assert "jargon" in events(metrics)
    assert metrics["rare_words"] > 0.5 > metrics["parent_rare_words"]


def test_a_child_that_lost_the_thread(parent):
    metrics = figures(tuned(parent, records(PLAIN, NOISE), 40), parent)
    assert events(metrics) == ["weak_multi_turn"]


def test_tokens_belong_to_their_turn(parent):
    _, tokenizer = parent
    three = [
        Conversation(
            str(n),
            [{"role": role, "content": f"{role} {i}"} for i in range(n) for role in ("user", "assistant")],
            "",
            "",
        )
        for n in (1, 3, 2)
    ]
    source = pack_conversations(three, tokenizer, 256, Counter())
    turns = ByTurn(source)
    assert len(turns) == 1, "all in one sequence"
    packed, units = turns[0], turns.units(0)
    owners = source.units(0)
    found = [
        tokenizer.decode(packed.ids[packed.supervised & (owners == owner) & (units == turn)])
        for owner in np.unique(owners)
        for turn in (1, 2, 3)
    ]
    assert sorted(filter(None, found)) == sorted(f"assistant {i}<|im_end|>" for n in (1, 2, 3) for i in range(n))
    assert all(
        text == "" or text == f"assistant {turn - 1}<|im_end|>" for text, turn in zip(found, [1, 2, 3] * 3, strict=True)
    )


def test_single_turns_and_few_words_give_no_figures(parent):
    model, tokenizer = parent
    one = [Conversation("a", [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}], "", "")]
    assert measure_turns(model, model, tokenizer, one, LENGTH) == {}
    assert measure_wording(model, model, tokenizer, one) == {}
