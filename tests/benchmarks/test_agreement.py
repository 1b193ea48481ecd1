"""English rules give the verdicts of datatrove; where tokenizers decide, tasks/curation/README.md says why not."""

from pathlib import Path

import pytest

from tests.benchmarks import rival
from tests.benchmarks.agreement import measure_agreement
from tests.benchmarks.corpus import corpora

# Their rule → the least agreement: spaCy's tokens and sentences are not ours.
APART = {"max_non_alpha_words_ratio": 0.93, "too_few_sentences": 0.95}


@pytest.mark.slow
def test_each_rule_agrees_with_datatrove(shared_data: Path, tmp_path: Path) -> None:
    if not (rival.VENV / ".ready").exists():
        pytest.skip("datatrove is not installed: `make bench` sets up its environment")
    english, chinese = corpora(1)
    found = measure_agreement(english, chinese, tmp_path)
    one = 1 / found["documents"]  # of fewer than 200 documents one alone is more than 0.5%
    low = {
        rule: share
        for rule, share in found["agreement"].items()
        if share < APART.get(rule, min(0.995, 1 - one)) - 1e-9
    }
    assert low == {}
    assert len(found["agreement"]) == 29
