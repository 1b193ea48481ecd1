"""From expectations to outcomes to a verdict: severity, and all that must never count as passed."""

from typing import Any

import pytest

from tasks.gates.contract import Expectation, Frame
from tasks.gates.gate import decide
from tasks.gates.validation import Outcome, validate_frame


def expect(expectation: str, severity: str = "critical", **kwargs: Any) -> dict[str, Any]:
    return {
        "expectation": expectation,
        "kwargs": kwargs,
        "severity": severity,
        "meaning": "It holds.",
        "remedy": "Mend it.",
    }


def hold(records: list[dict[str, Any]], *expectations: dict[str, Any], **columns: Any) -> list[Outcome]:
    frame = Frame.model_validate(
        {
            "subject": "metrics",
            "view": "metrics",
            "title": "Rows",
            "identify": ["name"],
            "columns": {"name": "string", **columns},
            "expectations": list(expectations),
        }
    )
    return validate_frame("rows", frame, records)


ROWS = [{"name": name, "loss": loss} for name, loss in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
BELOW_3: dict[str, Any] = {"column": "loss", "max_value": 2.5}
BETWEEN = "expect_column_values_to_be_between"


def test_all_holds() -> None:
    outcomes = hold(ROWS, expect(BETWEEN, column="loss", max_value=3), loss="number")
    assert decide(outcomes) == "passed"
    assert outcomes[-1].observed == "all 3 rows"


def test_a_failed_warning_alone_does_not_refuse() -> None:
    outcomes = hold(ROWS, expect(BETWEEN, "warning", **BELOW_3), loss="number")
    assert decide(outcomes) == "warning"


def test_a_critical_failure_refuses_whatever_else_holds() -> None:
    outcomes = hold(ROWS, expect(BETWEEN, "warning", **BELOW_3), expect(BETWEEN, **BELOW_3), loss="number")
    assert decide(outcomes) == "refused"


def test_nothing_checked_is_a_refusal() -> None:
    assert decide([]) == "refused"


def test_results_keep_the_contracts_order_and_offending_rows_are_named() -> None:
    maxima = (0.5, 1.5, 2.5, 3.5)
    outcomes = hold(ROWS, *(expect(BETWEEN, column="loss", max_value=value) for value in maxima), loss="number")
    own = [outcome for outcome in outcomes if not outcome.structure]
    assert [outcome.unexpected for outcome in own] == [3, 2, 1, 0]
    assert own[1].rows == [{"name": "b", "loss": 2.0}, {"name": "c", "loss": 3.0}]
    assert own[1].observed == "not so in 2 of 3 rows (66.7%)"


def test_only_a_few_offending_rows_are_shown() -> None:
    rows = [{"name": "x", "loss": 9.0}] * 50
    outcome = hold(rows, expect(BETWEEN, **BELOW_3), loss="number")[-1]
    assert (outcome.unexpected, len(outcome.rows)) == (50, 5)


@pytest.mark.parametrize("severity", ["critical", "warning"])
@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "no rows"),
        ([{"name": "a"}], "column 'loss' is missing"),
        ([{"name": "a", "loss": "low"}], "not computed"),
    ],
)
def test_what_could_not_be_checked_is_critical(severity: str, records: list[dict[str, Any]], words: str) -> None:
    outcomes = hold(records, expect(BETWEEN, severity, **BELOW_3), loss="number")
    assert decide(outcomes) == "refused"
    assert any(words in outcome.observed for outcome in outcomes if outcome.severity == "critical")


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_missing_or_not_finite_is_critical(value: float | None) -> None:
    # Great Expectations leaves missing values out: this expectation alone would hold.
    outcomes = hold(
        [*ROWS, {"name": "d", "loss": value}], expect(BETWEEN, "warning", min_value=0, column="loss"), loss="number"
    )
    assert decide(outcomes) == "refused"
    (failed,) = [outcome for outcome in outcomes if not outcome.success]
    assert failed.rows == [{"name": "d", "loss": None}]


def test_a_nullable_column_may_have_gaps_but_must_be_there() -> None:
    gaps = {"type": "number", "nullable": True}
    wanted = expect(BETWEEN, column="loss", max_value=3)
    assert decide(hold([*ROWS, {"name": "d", "loss": None}], wanted, loss=gaps)) == "passed"
    assert decide(hold([{"name": "d"}], wanted, loss=gaps)) == "refused"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [("string", "x", 1), ("integer", 1, 1.5), ("number", 1, "1"), ("boolean", True, "yes")],
)
def test_types_are_held(kind: str, good: Any, bad: Any) -> None:
    wanted = expect("expect_table_row_count_to_be_between", min_value=1)
    assert decide(hold([{"name": "a", "value": good}], wanted, value=kind)) == "passed"
    outcomes = hold([{"name": "a", "value": good}, {"name": "b", "value": bad}], wanted, value=kind)
    assert decide(outcomes) == "refused"
    (failed,) = [outcome for outcome in outcomes if not outcome.success]
    assert [row["name"] for row in failed.rows] == ["b"]


def test_an_expectation_that_names_columns_knows_them() -> None:
    pair = Expectation.model_validate(expect("expect_column_pair_values_to_be_equal", column_A="a", column_B="b"))
    assert pair.columns == ["a", "b"]
