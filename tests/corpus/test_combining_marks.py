"""Runs of combining marks are found wherever they begin, though most texts are not searched."""

import pytest

from tasks.corpus.document import MOST_MARKS, Document, Fault, parse_record


@pytest.mark.parametrize("lead", [0, 1, 498, 499, 500, 1234])
@pytest.mark.parametrize("marks, wrong", [(MOST_MARKS - 1, False), (MOST_MARKS, True), (3 * MOST_MARKS, True)])
def test_a_run_is_found_at_any_place(lead: int, marks: int, wrong: bool) -> None:
    found = parse_record({"text": "a" * lead + "b" + "\u0301" * marks + "é" * 700}, "web")
    assert isinstance(found, Fault if wrong else Document)
    if isinstance(found, Fault):
        assert found.reason == "combining_marks"
        assert str(lead + 1) in found.detail


def test_marks_apart_are_no_run() -> None:
    assert isinstance(parse_record({"text": "e\u0301" * 2000}, "web"), Document)
