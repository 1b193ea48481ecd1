"""English rules give the verdicts of datatrove on the same words. spaCy's words are others: tasks/curation/README.md
says how many verdicts that changes, and why."""

from pathlib import Path

import pytest

from tests.benchmarks import rival
from tests.benchmarks.agreement import measure_agreement
from tests.benchmarks.corpus import corpora

# Their rule → the least agreement with spaCy's words and sentences; of the others the usual one.
APART = {"max_non_alpha_words_ratio": 0.92, "duplicated_8_n_grams": 0.985, "duplicated_9_n_grams": 0.985}


@pytest.mark.slow
def test_each_rule_agrees_with_datatrove(shared_data: Path, tmp_path: Path) -> None:
    if not (rival.VENV / ".ready").exists():
        pytest.skip("datatrove is not installed: `make bench` sets up its environment")
    english, chinese = corpora(3)
    found = measure_agreement(english, chinese, tmp_path)
    one = 1 / found["documents"]  # of fewer than 200 documents one alone is more than 0.5%
    usual = min(0.995, 1 - one) - 1e-9
    same, default = (found[name]["agreement"] for name in ("same_words", "default"))
    assert {rule: share for rule, share in same.items() if share < usual} == {}
    assert {rule: share for rule, share in default.items() if share < APART.get(rule, usual)} == {}
    assert len(same) == len(default) == 29
