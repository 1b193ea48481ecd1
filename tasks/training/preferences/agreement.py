"""Krippendorff's α: how far people who judged the same answers agree, 1 wholly, 0 no better than by chance.

Krippendorff, *Content Analysis* (2004), chapter 11. Units are pairs of answers to a prompt, by criterion; values are
the better answer or a tie, as an ordinal scale: a tie lies between the two.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from tasks.corpus.artifact import content_hash


class Agreement(NamedTuple):
    """`alpha` is None, not measured, when no pair was judged by two known people, or all judgements are the same."""

    alpha: float | None
    annotators: int
    units: int  # pairs of answers that two or more people judged
    why: str  # in words, when it was not measured


def agreement(records: Iterable[dict[str, Any]]) -> Agreement:
    """Agreement over preference records (see `records.py`). A person's last judgement of a pair counts."""
    votes: dict[str, dict[str, int]] = defaultdict(dict)
    named = 0
    for record in records:
        if record["annotator"] is None or record["synthetic"]:
            continue
        named += 1
        answers = sorted(zip(record["responses"], record["ranks"], strict=True))  # the same way round for everyone
        for (first, rank), (second, other) in combinations(answers, 2):
            unit = content_hash([record["prompt"], record["criterion"], first, second])
            votes[unit][record["annotator"]] = (rank < other) - (rank > other)
    shared = {unit: given for unit, given in votes.items() if len(given) > 1}
    people = sorted({who for given in shared.values() for who in given})
    if not named:
        return Agreement(None, 0, 0, "no record names its annotator")
    if not shared:
        return Agreement(None, named, 0, "no two people judged the same pair of answers")
    table = np.full((len(people), len(shared)), np.nan)
    for column, unit in enumerate(sorted(shared)):
        for who, vote in shared[unit].items():
            table[people.index(who), column] = vote
    if len(np.unique(table[~np.isnan(table)])) == 1:
        return Agreement(None, len(people), len(shared), "all judgements are the same: no chance to tell from")
    return Agreement(alpha(table), len(people), len(shared), "")


def alpha(table: np.ndarray) -> float:
    """α of an ordinal table, shape (people, units), NaN where there is no judgement."""
    import krippendorff

    return float(krippendorff.alpha(reliability_data=table, level_of_measurement="ordinal"))
