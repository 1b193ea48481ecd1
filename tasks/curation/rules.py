"""Rules are bounds over signals. This file turns a table of signals into the list of failed rules of each row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.curation.config import Bound, CurationConfig

Reason = dict[str, Any]  # {rule, value, threshold, detail}
REASONS = pa.list_(
    pa.struct(
        [("rule", pa.string()), ("value", pa.float64()), ("threshold", pa.float64()), ("detail", pa.string())]
    )
)
NOT_CONFIGURED = "language_not_configured"
NOTHING_LEFT = "nothing_left"


def failed_rules(table: pa.Table, config: CurationConfig) -> list[list[Reason]]:
    """Every rule that each row fails, in the order of the configuration. Rows with a fault get an empty list."""
    faults, scores = table["fault"].to_pylist(), table["language_score"].to_pylist()
    reasons: list[list[Reason]] = [[] for _ in faults]
    rows_of: dict[tuple[str, str, str], list[int]] = {}
    groups = zip(*(table[name].to_pylist() for name in ("language", "kind", "source")), strict=True)
    for number, (group, fault) in enumerate(zip(groups, faults, strict=True)):
        if fault is None:
            rows_of.setdefault(group, []).append(number)
    for (language, kind, source), rows in rows_of.items():
        bounds = config.bounds(language, kind, source)
        if bounds is None:
            for number in rows:
                detail = f"language {language!r}; rules exist for {', '.join(sorted(config.rules))}"
                reasons[number].append(_reason(NOT_CONFIGURED, scores[number], None, detail))
            continue
        for rule, bound in bounds.items():
            values, outside = compare(table, bound, rows)
            for position in np.flatnonzero(outside):
                low = bound.min is not None and values[position] < bound.min
                side = "below the minimum" if low else "above the maximum"
                threshold = bound.min if low else bound.max
                detail = f"{bound.signal} {side}"
                reasons[rows[position]].append(_reason(rule, float(values[position]), threshold, detail))
    for number, nothing in enumerate(table["nothing_left"].to_pylist()):
        if nothing:
            reasons[number].append(_reason(NOTHING_LEFT, 0.0, 1.0, "every line that is not blank was cut"))
    return reasons


def compare(table: pa.Table, bound: Bound, rows: Sequence[int] | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """The bound's signal in the given rows, and whether each lies outside the bound."""
    values = table[bound.signal].to_numpy()[rows]
    outside = np.zeros(len(values), dtype=bool)
    if bound.min is not None:
        outside |= values < bound.min
    if bound.max is not None:
        outside |= values > bound.max
    return values, outside


def _reason(rule: str, value: float | None, threshold: float | None, detail: str) -> Reason:
    return {"rule": rule, "value": value, "threshold": threshold, "detail": detail}
