"""Expectations and what was observed, in words."""

from typing import TYPE_CHECKING, Any

from tasks.corpus.privacy import excerpt

if TYPE_CHECKING:
    import pandas


def number(value: Any) -> str:
    """A number for a person: thousands parted, six significant digits; anything else as excerpted text."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value != value:
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else excerpt(str(value), 80)


def quantity(column: str, value: Any) -> str:
    """A column's value; a share in per cent."""
    if column.endswith("_share") and isinstance(value, int | float) and value == value:
        return f"{100 * float(value):.4g}%"
    return number(value)


def expected_words(expectation: str, kwargs: dict[str, Any]) -> str:
    """What an expectation asks for; for a type without a phrase of its own, its arguments."""
    words = _phrase(expectation, kwargs)
    mostly = kwargs.get("mostly", 1)
    return words if mostly == 1 else f"{words}, in at least {100 * mostly:.6g}% of the rows"


def _phrase(expectation: str, kwargs: dict[str, Any]) -> str:
    match expectation:
        case "expect_column_values_to_be_between":
            return f"{kwargs['column']} {_range(kwargs)}"
        case "expect_column_value_lengths_to_be_between":
            return f"length of {kwargs['column']} {_range(kwargs)}"
        case "expect_table_row_count_to_be_between":
            return f"rows {_range(kwargs)}"
        case "expect_column_values_to_be_in_set":
            return f"{kwargs['column']} is {' or '.join(number(item) for item in kwargs['value_set'])}"
        case "expect_column_values_to_not_be_in_set":
            return f"{kwargs['column']} is none of {', '.join(number(item) for item in kwargs['value_set'])}"
        case "expect_column_values_to_be_in_type_list":
            return f"{kwargs['column']} is of type {' or '.join(kwargs['type_list'])}"
        case "expect_column_values_to_be_unique":
            return f"no {kwargs['column']} twice"
        case "expect_column_values_to_not_be_null":
            return f"{kwargs['column']} is never missing"
        case "expect_column_values_to_match_regex":
            return f"{kwargs['column']} matches {kwargs['regex']}"
        case "expect_column_values_to_not_match_regex":
            return f"{kwargs['column']} does not match {kwargs['regex']}"
        case "expect_column_pair_values_a_to_be_greater_than_b":
            sign = "≥" if kwargs.get("or_equal") else ">"
            return f"{kwargs['column_A']} {sign} {kwargs['column_B']}"
        case "expect_column_pair_values_to_be_equal":
            return f"{kwargs['column_A']} = {kwargs['column_B']}"
    for statistic in ("min", "max", "mean", "median", "sum", "stdev", "unique_value_count"):
        if expectation == f"expect_column_{statistic}_to_be_between":
            return f"{statistic.replace('_', ' ')} of {kwargs['column']} {_range(kwargs)}"
    arguments = ", ".join(f"{key} = {value}" for key, value in kwargs.items() if key != "mostly")
    return f"{expectation.removeprefix('expect_').replace('_', ' ')}: {arguments}"


def _range(kwargs: dict[str, Any]) -> str:
    column = kwargs.get("column", "")
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    least = "more than" if kwargs.get("strict_min") else "at least"
    most = "less than" if kwargs.get("strict_max") else "at most"
    if low is not None and low == high:
        return f"exactly {quantity(column, low)}"
    if low is not None and high is not None:
        return f"{least} {quantity(column, low)} and {most} {quantity(column, high)}"
    return f"{least} {quantity(column, low)}" if high is None else f"{most} {quantity(column, high)}"


def observed_words(columns: list[str], result: dict[str, Any], table: "pandas.DataFrame") -> str:
    """What was found: the value itself in a table of one row, else how many rows are as expected."""
    if len(table) == 1 and columns:
        return ", ".join(f"{column} = {quantity(column, table[column].iloc[0])}" for column in columns)
    if "element_count" not in result:
        return number(result.get("observed_value"))
    checked, wrong = result["element_count"], result.get("unexpected_count") or 0
    if wrong:
        return f"not so in {wrong:,} of {checked:,} rows ({100 * wrong / checked:.3g}%)"
    return f"all {checked:,} rows"
