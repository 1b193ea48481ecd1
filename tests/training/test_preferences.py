"""Judgements of answers: every form read, what does not fit set aside, pairs and their weights, and agreement."""

import json
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tasks.corpus.shards import Row, read_shard, write_shard
from tasks.corpus.storage import LocalStore, read_json, write_json
from tasks.errors import DataError
from tasks.evaluation.preferences import measure_preferences
from tasks.gates.gate import run_gate
from tasks.training.cli import register
from tasks.training.conversations import Unusable
from tasks.training.importing import import_preferences
from tasks.training.plan import identify
from tasks.training.preferences.agreement import agreement, alpha
from tasks.training.preferences.pairs import pairs_of, read_preferences
from tasks.training.preferences.records import read_preference

ASKED = [{"role": "user", "content": "Why?"}]
FORMS: dict[str, dict[str, Any]] = {
    "own": {"prompt": "Why?", "responses": ["So.", "No."], "ranks": [1, 2]},
    "own, messages": {"prompt": ASKED, "responses": ["So.", "No."], "ranks": [1, 2]},
    "pair": {"prompt": "Why?", "chosen": "So.", "rejected": "No."},
    "pair of messages": {
        "prompt": ASKED,
        "chosen": [{"role": "assistant", "content": "So."}],
        "rejected": [{"role": "assistant", "content": "No."}],
    },
    "sharegpt": {
        "conversations": [{"from": "human", "value": "Why?"}],
        "chosen": {"from": "gpt", "value": "So."},
        "rejected": {"from": "gpt", "value": "No."},
    },
    "alpaca": {"instruction": "Why?", "input": "", "chosen": "So.", "rejected": "No."},
    "ranking": {"instruction": "Why?", "input": "", "output": ["So.", "No."], "history": []},
    "transcripts": {
        "chosen": "\n\nHuman: Why?\n\nAssistant: So.",
        "rejected": "\n\nHuman: Why?\n\nAssistant: No.",
    },
}


@pytest.mark.parametrize("record", FORMS.values(), ids=FORMS)
def test_every_form_says_the_same(record):
    found = read_preference(record)
    assert (found["prompt"], found["responses"], found["ranks"]) == (ASKED, ["So.", "No."], [1, 2])
    assert found["id"] == read_preference(FORMS["own"])["id"]
    assert read_preference(found)["id"] == found["id"], "what was written is read again as it is"


BROKEN: dict[str, dict[str, Any]] = {
    "unknown_form": {"text": "Why?"},
    "too_few_responses": {"prompt": "Why?", "responses": ["So."], "ranks": [1]},
    "ranks": {"prompt": "Why?", "responses": ["So.", "No."], "ranks": [1]},
    "same_response": {"prompt": "Why?", "chosen": "So.", "rejected": "So."},
    "empty_message": {"prompt": "Why?", "chosen": "So.", "rejected": "  "},
    "not_text": {"prompt": "Why?", "chosen": "So.", "rejected": 3},
    "prompts_differ": {"chosen": "\n\nHuman: A\n\nAssistant: So.", "rejected": "\n\nHuman: B\n\nAssistant: No."},
    "turns": {"prompt": [*ASKED, {"role": "assistant", "content": "So."}], "chosen": "a", "rejected": "b"},
    "scores": {"prompt": "Why?", "responses": ["So.", "No."], "ranks": [1, 2], "scores": [1.0, 2.0]},
    "damaged_text": {"prompt": "Why?", "chosen": "So.", "rejected": "\ud800"},
}


@pytest.mark.parametrize(("reason", "record"), BROKEN.items(), ids=BROKEN)
def test_what_does_not_fit_is_told_by_reason(reason, record):
    with pytest.raises(Unusable) as error:
        read_preference(record)
    assert error.value.reason == reason


def test_a_ranking_is_pairs_that_weigh_one_together():
    record = read_preference({"prompt": "Why?", "responses": list("ABCD"), "ranks": [2, 1, 2, 3]})
    pairs = pairs_of(record)
    assert [(pair.chosen, pair.rejected, pair.tie) for pair in pairs] == [
        ("B", "A", False),
        ("A", "C", True),
        ("A", "D", False),
        ("B", "C", False),
        ("B", "D", False),
        ("C", "D", False),
    ]
    assert sum(pair.weight for pair in pairs) == pytest.approx(1)
    assert {pair.margin for pair in pairs} == {0.0}


def test_margins_are_differences_of_scores():
    record = {"prompt": "Why?", "responses": ["A", "B", "C"], "ranks": [2, 1, 3], "scores": [4.5, 5, 1]}
    found = [(pair.chosen, pair.rejected, pair.margin) for pair in pairs_of(read_preference(record))]
    assert found == [("B", "A", 0.5), ("A", "C", 3.5), ("B", "C", 4.0)]
    pair = read_preference({**FORMS["pair"], "margin": 2})
    assert pairs_of(pair)[0].margin == 2


def test_import_adds_up_and_can_be_read(tmp_path):
    rows = [*FORMS.values(), *(row for reason, row in BROKEN.items() if reason != "damaged_text")]
    write_shard(tmp_path / "raw" / "mixed.jsonl.zst", rows)
    (report,) = import_preferences(str(tmp_path / "raw"), str(tmp_path / "in"), domain="law")
    assert report["read"] == len(rows) == report["imported"] + report["repeated"] + report["quarantined"]
    assert (report["imported"], report["repeated"]) == (1, len(FORMS) - 1)
    assert report["reasons"] == dict.fromkeys(sorted(set(BROKEN) - {"damaged_text"}), 1)
    assert report["domains"] == {"law": 1}
    (row,) = read_shard(LocalStore(tmp_path / "in"), "mixed.jsonl.zst")
    assert isinstance(row, Row)
    assert row.record["domain"] == "law" and row.record["source"] == "mixed"


def test_command(tmp_path):
    (tmp_path / "pairs.jsonl").write_text(json.dumps(FORMS["pair"]) + "\n" + json.dumps(BROKEN["ranks"]) + "\n")
    arguments = ["import-preferences", "--from", str(tmp_path / "pairs.jsonl"), "--into", str(tmp_path / "in")]
    app = typer.Typer()
    register(app)
    told = CliRunner().invoke(app, arguments).output
    assert "read 2 = 1 imported + 0 repeated + 1 set aside (1 ranks)" in told


def test_a_prompt_is_on_one_side_of_the_split(tmp_path):
    records = [
        {"prompt": f"Why {number}?", "chosen": "So.", "rejected": f"No, {way}.", "domain": ("law", "code")[number % 2]}
        for number in range(60)
        for way in range(3)
    ]
    write_shard(tmp_path / "pairs.jsonl.zst", records)
    both = read_preferences(str(tmp_path), domain="law", heldout_share=0.3)
    sides = {split: {pair.prompt_id for pair in pairs} for split, pairs in both.splits.items()}
    assert not sides["train"] & sides["heldout"] and len(sides["train"] | sides["heldout"]) == 30
    assert both.counts["outside_domain"] == 90
    with pytest.raises(DataError, match=r"no pair of domain medicine .* \(domains there: code, law"):
        read_preferences(str(tmp_path), domain="medicine", heldout_share=0.3)


# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), example C: four observers, twelve units
TEXTBOOK = """
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
"""


def test_alpha_of_the_textbook():
    table = np.array([[np.nan if v == "." else float(v) for v in row.split()] for row in TEXTBOOK.strip().splitlines()])
    assert alpha(table) == pytest.approx(0.815, abs=5e-4)


def judged(votes: list[dict[str, list[int]]], swap: bool = False) -> list[dict]:
    found = []
    for number, given in enumerate(votes):
        for who, ranks in given.items():
            way = -1 if swap and who == "b" else 1  # shown the other way round
            answers = [f"yes {number}", f"no {number}"][::way]
            record = {"prompt": f"Why {number}?", "responses": answers, "ranks": ranks[::way], "annotator": who}
            found.append(read_preference(record))
    return found


def test_agreement_of_people():
    alike = [{"a": [1, 2], "b": [1, 2]}, {"a": [2, 1], "b": [2, 1]}, {"a": [1, 1], "b": [1, 1]}]
    assert agreement(judged(alike)) == agreement(judged(alike, swap=True)) == (1.0, 2, 3, "")
    apart = agreement(judged([{"a": [1, 2], "b": [2, 1]}, {"a": [2, 1], "b": [1, 2]}]))
    assert apart.alpha is not None and apart.alpha < 0


def test_agreement_that_cannot_be_told_is_not_measured():
    nobody = [read_preference(FORMS["pair"])]
    assert agreement(nobody) == (None, 0, 0, "no record names its annotator")
    assert agreement(judged([{"a": [1, 2]}, {"b": [1, 2]}])).alpha is None
    assert agreement(judged([{"a": [1, 2], "b": [1, 2]}])).alpha is None


def test_figures_and_the_gate(tmp_path):
    records = judged([{"a": [1, 2], "b": [1, 2]}, {"a": [2, 1], "b": [2, 1]}] * 20)
    write_shard(tmp_path / "in" / "judged.jsonl.zst", [*records, {"text": "no judgement"}])
    where = measure_preferences(identify(str(tmp_path / "in")), str(tmp_path / "store"))
    found = read_json(where)
    assert (found["records"], found["pairs"], found["unfit_records"], found["alpha"]) == (80, 80, 1, 1.0)
    assert run_gate("preferences", {"metrics": where}, str(tmp_path / "gate")).passed
    worse = (("alpha", None, "warning"), ("alpha", 0.1, "refused"), ("unfit_share", 0.2, "refused"))
    for name, value, verdict in worse:
        write_json(where, found | {name: value})
        assert run_gate("preferences", {"metrics": where}, str(tmp_path / "gate")).verdict == verdict


REAL = ["dpo_en_demo", "dpo_zh_500", "dpo_zh_demo", "hh_rlhf_harmless_test", "oasst_rm_zh"]


@pytest.mark.parametrize("name", REAL)
def test_real_preferences_are_read(shared_data, tmp_path, name):
    (report,) = import_preferences(str(shared_data / "pref" / f"{name}.jsonl.gz"), str(tmp_path))
    assert report["imported"] + report["repeated"] >= 0.98 * report["read"] > 100
    found = read_preferences(str(tmp_path), domain=None, heldout_share=0.2)
    assert sum(pair.weight for pairs in found.splits.values() for pair in pairs) == pytest.approx(report["imported"])
