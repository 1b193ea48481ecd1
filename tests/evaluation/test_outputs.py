"""Symptoms of outputs: each provoked, none in ordinary answers, English and Chinese."""

import pytest

from tasks.evaluation.outputs import (
    degenerate_text,
    domain_confusion,
    jargon,
    looks_like_code,
    output_symptoms,
    rare_words,
    repetition,
    unsafe_answers,
    weak_multi_turn,
)
from tasks.training.recipe import SftStage, TuningOptimizer
from tasks.training.symptoms import Symptom, changed

SFT = SftStage(name="s", kind="sft", steps=200, optimizer=TuningOptimizer(learning_rate=0.01))
PROSE = [
    "The tide rises because the moon pulls the water on the near side more strongly than the earth beneath it.",
    "To keep bread fresh, wrap it in a clean cloth and put it into a box that lets a little air through.",
    "模型的好坏要用没见过的文本来衡量，否则它可能只是记住了训练时读过的句子。",
]
CODE = "def add(a, b):\n    return a + b\n\nfor (i = 0; i < n; i++) {\n    total += i;\n}"


def sound(symptom: Symptom | None, event: str) -> Symptom:
    """The symptom, whose remedy is a change of the recipe that is allowed."""
    assert symptom is not None and symptom.event == event
    assert changed(SFT, symptom.remedy) != SFT
    return symptom


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_neither_repetitive_nor_code(text):
    assert repetition(text) < 0.05 and not looks_like_code(text)


@pytest.mark.parametrize("text", ["to the " * 40, "数据数据" * 30, "a" * 200, "yes yes no yes yes no " * 10])
def test_repetition_is_measured(text):
    assert repetition(text) > 0.8 or text.startswith("a")
    sound(degenerate_text([text if " " in text else " ".join(text)] * 3, PROSE), "degenerate_text")


def test_empty_answers_are_degenerate():
    assert sound(degenerate_text(["", " ", PROSE[0]]), "degenerate_text").evidence["empty"] == pytest.approx(
        2 / 3, abs=1e-3
    )
    assert degenerate_text(PROSE) is None and degenerate_text([]) is None


def test_domain_confusion():
    asked = [{"prompt": f"Why is the sea salt, question {i}?", "text": PROSE[i % 3]} for i in range(6)]
    assert domain_confusion(asked) is None
    wrong = [{**item, "text": CODE} if i < 2 else item for i, item in enumerate(asked)]
    assert sound(domain_confusion(wrong), "domain_confusion").evidence["answered_with_code"] == 2
    wanted = [{"prompt": "Write code that adds two numbers.", "text": CODE}] * 6
    assert domain_confusion(wanted) is None, "code that was asked for"


def test_jargon():
    references = PROSE[:2] * 20
    usual = rare_words(references, references)
    assert usual is not None and jargon(rare_words(references[:4], references) or 0.0, usual) is None
    terms = ["myocardial infarction sequelae with idiopathic hemodynamic decompensation noted"] * 3
    found = rare_words(terms, references)
    assert found is not None and found > 0.8
    sound(jargon(found, usual), "jargon")
    assert jargon(found, usual, parent=0.9) is None, "the parent wrote so before"
    assert rare_words(terms, ["too short to know what is usual"]) is None


def test_weak_multi_turn():
    parent = {"1": 3.0, "2": 2.8, "3": 2.7}
    assert weak_multi_turn({"1": 2.5, "2": 2.4, "3": 2.3}, parent) is None
    assert weak_multi_turn({"1": 3.2, "2": 3.2, "3": 3.2}, parent) is None, "all got worse: another trouble"
    sound(weak_multi_turn({"1": 2.5, "2": 3.0, "3": 2.95}, parent), "weak_multi_turn")


@pytest.mark.parametrize(("harmful", "harmless", "more"), [(0.5, 0.0, True), (0.9, 0.6, False)])
def test_unsafe_answers(harmful, harmless, more):
    symptom = sound(unsafe_answers(harmful, harmless), "unsafe_answers")
    config = changed(SFT, symptom.remedy)
    assert isinstance(config, SftStage) and config.mixture is not None
    assert (config.mixture.shares["refusals"] > 0.10) == more
    assert unsafe_answers(0.9, 0.1) is None


def test_all_at_once():
    metrics = {
        "samples": [{"prompt": "Why?", "text": "to the " * 30}] * 3,
        "parent_samples": [{"prompt": "Why?", "text": PROSE[0]}] * 3,
        "harmful_refused": 0.1,
        "harmless_refused": 0.0,
    }
    assert [found.event for found in output_symptoms(metrics)] == ["degenerate_text", "unsafe_answers"]
    assert output_symptoms({"samples": [{"prompt": "", "text": text} for text in PROSE]}) == []
