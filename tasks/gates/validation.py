"""A frame of a contract, validated with Great Expectations.

Decides nothing: each expectation's outcome is handed on with its own severity. Great Expectations' `success` of a
whole suite is False for a failed warning too, so it is not used.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.corpus.privacy import excerpt
from tasks.errors import ConfigError
from tasks.gates.contract import Column, Contract, Expectation, Frame, Severity
from tasks.gates.data_docs import Validated
from tasks.gates.wording import expected_words, observed_words
from tasks.settings import StrictModel

if TYPE_CHECKING:
    import pandas
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult

ROW = "__row__"  # position of a row in its frame, so that offending rows can be found again
SHOWN_ROWS = 5
PLACES = {"doc_id", "file", "shard"}  # names of files and hashes: their digits say where to look, not whom to call
TYPE_NAMES = {
    "string": ["str"],
    "integer": ["int", "int64"],
    "number": ["int", "int64", "float", "float64"],
    "boolean": ["bool"],
}


class Outcome(StrictModel):
    """What came of one expectation. `rows` are a few offending rows, masked and cut for showing."""

    frame: str
    expectation: str
    kwargs: dict[str, Any]
    severity: Severity
    structure: bool = False
    meaning: str
    remedy: str
    success: bool
    expected: str
    observed: str
    checked: int
    unexpected: int
    rows: list[dict[str, Any]] = Field(default_factory=list)


def check_types(contract: Contract) -> None:
    """Raise ConfigError for an expectation that Great Expectations does not know, or does not take the arguments of."""
    for name, frame in contract.frames.items():
        for expectation in frame.expectations:
            _compile(expectation, 0, f"contract '{contract.name}', frame '{name}'")


def validate_frame(
    name: str,
    frame: Frame,
    records: Sequence[dict[str, Any]],
    documented: list[Validated] | None = None,
) -> list[Outcome]:
    """Outcomes of a frame's declared columns and of its expectations, in the contract's order.

    An empty frame and a missing column are critical failures, and so is an expectation that could not be computed.
    What Great Expectations found is added to `documented`, for its own pages.
    """
    if not records:
        return [_no_rows(name, frame)]
    table = to_table(frame.columns, records)
    missing = [column for column in frame.columns if column not in table]
    outcomes = [_no_column(name, frame, column) for column in missing]
    implied = [item for column in table for item in _implied(frame, column, table[column])]
    asked = [(item, True) for item in implied] + [(item, False) for item in frame.expectations]
    computable = [(item, own) for item, own in asked if not set(item.columns) & set(missing)]
    for item, _ in asked:
        if absent := sorted(set(item.columns) & set(missing)):
            outcomes.append(_failed(name, item, f"not computed: column '{absent[0]}' is missing"))
    validated = _validate(table, [item for item, _ in computable])
    if documented is not None:
        documented.append(Validated(frame.title, validated))
    for (item, structure), result in zip(computable, validated.results, strict=True):
        outcomes.append(_outcome(name, frame, item, structure, result, table))
    return outcomes


def to_table(columns: dict[str, Column], records: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """A pandas frame of the declared columns that any record has; what is not finite counts as missing.

    A column whose values all fit its type gets the numeric dtype; any other stays as objects, so that the
    expectation on its type sees each value as it is.
    """
    import pandas

    series = {}
    for name, column in columns.items():
        if any(name in record for record in records):
            values = [_finite(record.get(name)) for record in records]
            series[name] = pandas.Series(values, dtype=_dtype(column.type, values))
    return pandas.DataFrame(series, index=range(len(records)))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _dtype(wanted: str, values: Iterable[Any]) -> Any:
    kinds = {type(value) for value in values}
    if wanted == "integer" and kinds == {int}:
        return "int64"
    if wanted == "number" and kinds <= {int, float}:
        return "float64"
    return "bool" if wanted == "boolean" and kinds == {bool} else object


def _implied(frame: Frame, name: str, values: "pandas.Series") -> list[Expectation]:
    """What a declared column promises: its type, and unless nullable a value in every row.

    They are asked only where something does not fit, to count and show the rows: each costs milliseconds.
    """
    column = frame.columns[name]
    if values.dtype != object and not values.hasnans:
        return []
    if column.type == "string" and set(map(type, values)) == {str}:
        return []
    remedy = "Make the data again with this version of the project, or correct the column's type in the contract."
    implied = [
        Expectation(
            expectation="expect_column_values_to_be_in_type_list",
            kwargs={"column": name, "type_list": TYPE_NAMES[column.type]},
            severity="critical",
            meaning=f"Column '{name}' holds {column.type} values.",
            remedy=remedy,
        )
    ]
    if not column.nullable:
        implied.append(
            Expectation(
                expectation="expect_column_values_to_not_be_null",
                kwargs={"column": name},
                severity="critical",
                meaning=f"Column '{name}' has a finite value in every row.",
                remedy=remedy,
            )
        )
    return implied


def _compile(item: Expectation, position: int, where: str) -> Any:
    from great_expectations.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )
    from pydantic.v1 import ValidationError

    try:
        kind: Any = get_expectation_impl(item.expectation)
        return kind(**item.kwargs, severity=item.severity, meta={"position": position})
    except ExpectationNotFoundError:
        import difflib

        near = difflib.get_close_matches(item.expectation, list_registered_expectation_implementations(), n=1, cutoff=0)
        raise ConfigError(f"{where}: no expectation '{item.expectation}'; did you mean '{near[0]}'?") from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, part['loc']))}: {part['msg']}" for part in error.errors())
        raise ConfigError(f"{where}: arguments of {item.expectation}: {wrong}") from None


def _validate(table: "pandas.DataFrame", items: Sequence[Expectation]) -> "ExpectationSuiteValidationResult":
    """Great Expectations' results, in the order of `items`. A context of its own: contexts have no shared writers."""
    import great_expectations as gx

    quiet: Any = {"globally": False}
    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = quiet
    batch = (
        context.data_sources.add_pandas("gate")
        .add_dataframe_asset("frame")
        .add_batch_definition_whole_dataframe("whole")
        .get_batch({"dataframe": table.assign(**{ROW: range(len(table))})})
    )
    compiled = [_compile(item, position, "frame") for position, item in enumerate(items)]
    suite = context.suites.add(gx.ExpectationSuite(name="contract", expectations=compiled))
    result_format: Any = {"result_format": "COMPLETE", "unexpected_index_column_names": [ROW]}
    validated = batch.validate(suite, result_format=result_format)
    # Results come back in an order of their own.
    validated.results.sort(key=lambda result: result.expectation_config.meta["position"])
    return validated


def _outcome(
    name: str, frame: Frame, item: Expectation, structure: bool, result: Any, table: "pandas.DataFrame"
) -> Outcome:
    if error := _raised(result.exception_info):
        return _failed(name, item, f"not computed: {excerpt(error)}", structure=structure)
    found = result.result
    # A table of one row says all in what was observed.
    unexpected = found.get("unexpected_index_list") if frame.identify else None
    positions = sorted({int(index[ROW]) for index in unexpected or []})
    return Outcome(
        frame=name,
        expectation=item.expectation,
        kwargs=item.kwargs,
        severity=item.severity,
        structure=structure,
        meaning=item.meaning,
        remedy=item.remedy,
        success=bool(result.success),
        expected=expected_words(item.expectation, item.kwargs),
        observed=observed_words(item.columns, found, table),
        checked=int(found.get("element_count", len(table))),
        unexpected=int(found.get("unexpected_count") or 0),
        rows=[_show(table, position, [*frame.identify, *item.columns]) for position in positions[:SHOWN_ROWS]],
    )


def _raised(info: dict[str, Any]) -> str | None:
    """The message of an expectation that raised; several metrics may each have raised one."""
    reports = [info] if "raised_exception" in info else list(info.values())
    messages = [str(report["exception_message"]) for report in reports if report.get("raised_exception")]
    return "; ".join(sorted(set(messages))) or None


def _show(table: "pandas.DataFrame", position: int, columns: list[str]) -> dict[str, Any]:
    row = table.iloc[position]
    return {column: _shown(column, row[column]) for column in dict.fromkeys(columns)}


def _shown(column: str, value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    return _finite(value) if isinstance(value, float) else excerpt(str(value), numbers=column not in PLACES)


def _failed(name: str, item: Expectation, why: str, *, structure: bool = False) -> Outcome:
    """Critical whatever the expectation's own severity: what could not be computed is not known to hold."""
    return Outcome(
        frame=name,
        expectation=item.expectation,
        kwargs=item.kwargs,
        severity="critical",
        structure=structure,
        meaning=item.meaning,
        remedy=item.remedy,
        success=False,
        expected=expected_words(item.expectation, item.kwargs),
        observed=why,
        checked=0,
        unexpected=0,
    )


def _no_rows(name: str, frame: Frame) -> Outcome:
    return Outcome(
        frame=name,
        expectation="expect_table_row_count_to_be_between",
        kwargs={"min_value": 1},
        severity="critical",
        structure=True,
        meaning="There is something to check.",
        remedy=f"Look why '{frame.subject}' is empty; {len(frame.expectations)} expectations could not be checked.",
        success=False,
        expected="at least 1 row",
        observed="no rows",
        checked=0,
        unexpected=0,
    )


def _no_column(name: str, frame: Frame, column: str) -> Outcome:
    return Outcome(
        frame=name,
        expectation="expect_column_to_exist",
        kwargs={"column": column},
        severity="critical",
        structure=True,
        meaning=f"Column '{column}' is there.",
        remedy=f"Make '{frame.subject}' again with this version of the project, or correct the contract.",
        success=False,
        expected=f"column '{column}' of type {frame.columns[column].type}",
        observed="missing",
        checked=0,
        unexpected=0,
    )


def unreadable(subject: str, form: str, why: str) -> Outcome:
    """The outcome for a subject that could not be read at all."""
    return Outcome(
        frame=subject,
        expectation="subject_to_be_readable",
        kwargs={},
        severity="critical",
        structure=True,
        meaning=f"The subject '{subject}' can be read.",
        remedy="Finish or repeat the step that makes it, then run the gate again.",
        success=False,
        expected=f"a readable subject of the form '{form}'",
        observed=excerpt(why, 600),
        checked=0,
        unexpected=0,
    )
