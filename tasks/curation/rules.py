"""Rules are bounds over signals. This file turns a table of signals into the list of failed rules of each row."""

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.curation.config import CurationConfig

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
    languages, kinds = table["language"].to_pylist(), table["kind"].to_pylist()
    faults = table["fault"].to_pylist()
    scores = table["language_score"].to_pylist()
    reasons: list[list[Reason]] = [[] for _ in languages]
    rows_of: dict[tuple[str, str], list[int]] = {}
    for number, (language, kind, fault) in enumerate(zip(languages, kinds, faults, strict=True)):
        if fault is None:
            rows_of.setdefault((language, "code" if kind == "code" else "prose"), []).append(number)
    for (language, kind), rows in rows_of.items():
        rule_set = config.rule_set(language, kind)
        if rule_set is None:
            for number in rows:
                detail = f"language {language!r}; rules exist for {', '.join(sorted(config.rules))}"
                reasons[number].append(_reason(NOT_CONFIGURED, scores[number], None, detail))
            continue
        for rule, bound in rule_set.bounds.items():
            values = table[bound.signal].to_numpy()[rows]
            low = values < bound.min if bound.min is not None else np.zeros(len(rows), bool)
            high = values > bound.max if bound.max is not None else np.zeros(len(rows), bool)
            for position in np.flatnonzero(low | high):
                threshold = bound.min if low[position] else bound.max
                side = "below the minimum" if low[position] else "above the maximum"
                detail = f"{bound.signal} {side}"
                reasons[rows[position]].append(_reason(rule, float(values[position]), threshold, detail))
    for number, nothing in enumerate(table["nothing_left"].to_pylist()):
        if nothing:
            reasons[number].append(_reason(NOTHING_LEFT, 0.0, 1.0, "every line that is not blank was cut"))
    return reasons


def _reason(rule: str, value: float | None, threshold: float | None, detail: str) -> Reason:
    return {"rule": rule, "value": value, "threshold": threshold, "detail": detail}
