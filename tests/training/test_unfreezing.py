"""The schedule of progressive unfreezing, in the numbers it is usually stated in. What stays to the bit on two ranks is
in `test_engine.py`."""

import pytest

from tasks.training.tuning import Unfreezing
from tasks.training.unfreezing import ATTENTION, REST, frozen_units, unit_of

UNITS = {ATTENTION, REST, *(f"ffn.{layer}" for layer in range(40))}


@pytest.mark.parametrize(
    ("step", "free"),
    [(0, 0), (999, 0), (1000, 4), (1999, 4), (2000, 8), (5000, 20), (9499, 36), (9500, 40), (9999, 40)],
)
def test_ten_percent_each_thousand_steps_and_all_in_the_last_five_hundred(step, free):
    frozen = frozen_units(UNITS, step, 10_000, Unfreezing())
    assert frozen - {REST} == {f"ffn.{layer}" for layer in range(40 - free)}, "the last layers come first"
    assert (REST in frozen) == (step < 9500)
    assert ATTENTION not in frozen


def test_few_layers_and_short_runs():
    units = {ATTENTION, REST, "ffn.0", "ffn.1", "ffn.2"}
    plan = Unfreezing(every=2, share=0.1, last=1)
    assert [len(frozen_units(units, step, 6, plan)) for step in range(6)] == [4, 4, 3, 3, 3, 0]
    assert frozen_units(units, 0, 1, Unfreezing()) == set(), "a run of fewer steps than `last` freezes nothing"


def test_the_schedule_scales_with_the_run():
    """What 10,000 steps free after 1,000 and 9,500, a run of 60 frees after 6 and 57."""
    plan = Unfreezing(scaled_from=10_000)
    for step in range(60):
        assert frozen_units(UNITS, step, 60, plan) == frozen_units(UNITS, step * 10_000 // 60, 10_000, plan), step
    assert plan.of(10_000) == (1000, 500) and plan.of(1) == (1, 1)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("model.layers.7.mlp.gate_proj.weight", "ffn.7"),
        ("model.layers.7.self_attn.q_proj.weight", ATTENTION),
        ("model.layers.7.input_layernorm.weight", REST),
        ("model.embed_tokens.weight", REST),
        ("lm_head.weight", REST),
    ],
)
def test_units(name, unit):
    assert unit_of(name) == unit
