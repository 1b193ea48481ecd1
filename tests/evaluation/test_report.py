"""The report of a stage: curves that keep a spike, round ticks, nothing of the data that could run or tell tales."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.corpus.artifact import Artifact
from tasks.evaluation.charts import HEIGHT, HUGE, MOST_POINTS, TINY, WIDTH, chart, short, thinned, ticks
from tasks.evaluation.report import number, pairs, render
from tasks.training.plan import Input, StageSpec
from tasks.training.recipe import SftStage, TuningOptimizer

CONFIG = SftStage(name="sft", kind="sft", steps=40, optimizer=TuningOptimizer(learning_rate=0.01))
SPEC = StageSpec(
    recipe="r",
    stage="sft",
    kind="sft",
    key="k" * 32,
    job="/job",
    artifact="/artifact",
    store="/store",
    config=CONFIG,
    parents={"model": Input(uri="/parent", hash="b" * 64)},
    data={},
)
ARTIFACT = Artifact(kind="model", stage="sft", key="k", config_hash="", code_version=1, hash="a" * 64)
LINES = [
    {"step": n, "loss": 5 - n / 20, "learning_rate": 1e-3, "grad_norm": 1.0 + n % 3, "tokens_per_second": 900.0}
    | ({"heldout_loss": 5 - n / 30, "heldout_loss_by_category": {"code": 4.0, "general": 5.0}} if n % 10 == 0 else {})
    for n in range(1, 41)
]
METRICS = {
    "measure": "held-out response loss, nats a token (before: parent)",
    "before": 5.0,
    "after": 4.0,
    "heldout_loss": 4.0,
    "parent_heldout_loss": 5.0,
    "harmful_refused": 0.5,
    "parent_harmful_refused": 0.75,
    "samples": [{"prompt": "Who is <b>Ann</b>?", "text": "<script>alert(1)</script> ann@example.com, 138 1234 5678"}],
    "parent_samples": [{"prompt": "Who is <b>Ann</b>?", "text": "before it was \x1b[2J"}],
    "symptoms": [{"event": "jargon", "step": 0, "evidence": {"rare_words": 0.5}, "remedy": {"replay": 0.1}}],
}
EVENTS = [{"event": "rolled_back", "step": 20, "why": "bob@example.com <img>", "remedy": {"optimizer.clip_norm": 0.5}}]


def page() -> str:
    return render(SPEC, ARTIFACT, METRICS, LINES, EVENTS)


def test_it_says_what_happened():
    text = page()
    assert "5 → 4" in text and "-20.0%" in text and "-33.3%" in text
    assert text.count("<polyline") == 7, "two losses, rate, norm, throughput, two categories"
    assert "rolled_back" in text and "optimizer.clip_norm: 0.5" in text and "plugins/RUNBOOK.md#jargon" in text
    assert "before it was" in text and "<td><code>optimizer.learning_rate</code></td><td>0.01</td>" in text
    assert page() == text, "the same files give the same page"


def test_a_change_of_reward_is_no_percentage():
    rewards = {"parent_heldout_reward": -0.5445, "heldout_reward": 0.3146}
    reward, loss = pairs({**rewards, "parent_general_loss": 6.0, "general_loss": 6.3})
    assert (reward["change"], reward["good"]) == ("+0.859", True)
    assert (loss["change"], loss["good"]) == ("+5.0%", False)


def test_data_can_neither_run_nor_tell_on_anyone():
    text = page()
    assert "<script" not in text and "&lt;script&gt;" in text and "<img" not in text and "<b>Ann" not in text
    assert not [part for part in ("ann@example.com", "bob@example.com", "1234 5678", "\x1b") if part in text]
    assert "[e-mail]" in text and "[number]" in text
    assert "default-src 'none'" in text and "http://" not in text and "https://" not in text


def test_a_stage_without_curves_or_samples_still_has_a_page():
    text = render(SPEC, ARTIFACT, {"measure": "bytes a token", "before": 1.0, "after": 3.5}, [], [])
    assert "1 → 3.5" in text and "<svg" not in text and "Samples" not in text


def test_a_spike_stays_when_a_curve_is_thinned():
    points = [(float(n), 1.0) for n in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS and (54_321.0, 99.0) in kept and kept == sorted(kept)


@given(st.lists(st.floats() | st.floats(-1e6, 1e6), min_size=2, max_size=50), st.booleans())
@example([3.263574327921165e-296] * 2, True)
@example([1e308, -1e308], False)
def test_every_point_lies_in_the_picture(values, log):
    drawn = chart("x", {"a": list(enumerate(values))}, log=log)
    if drawn is None:
        assert sum(abs(value) < HUGE and (value > TINY or not log) for value in values) < 2
        return
    places = [tuple(map(float, pair.split(","))) for curve in drawn.curves for pair in curve.points.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert all(0 <= y <= HEIGHT for y, _ in drawn.y_ticks) and len(drawn.y_ticks) >= 1


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_round_and_few(low, width):
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * abs(low) - 1e-9 <= tick <= low + width + 1e-6 * abs(low + width) + 1e-9 for tick in found)


def test_no_number_at_all_draws_nothing():
    assert chart("x", {"a": [(1, math.nan), (2, math.inf), (3, 1.0)]}) is None
    assert chart("x", {}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (1234.0, "1,234"), (56_789, "56.8k"), (3.2e6, "3.2M"), (1e-5, "1e-5"), (-2.5, "-2.5")],
)
def test_short_numbers(value, text):
    assert short(value) == text


def test_numbers_of_a_person():
    assert [number(value) for value in (1_234_567, 0.123456, 12345.678, 3.0, "x")] == [
        "1,234,567",
        "0.1235",
        "12,345.7",
        "3",
        "x",
    ]
    assert number(float(np.float64(2.5))) == "2.5"
