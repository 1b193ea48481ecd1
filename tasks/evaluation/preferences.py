"""Preference records in figures, for the gate before a reward model learns from them."""

from collections import Counter
from typing import Any

from tasks.corpus.storage import exists, join, read_json, write_json
from tasks.training.plan import Input
from tasks.training.preferences.agreement import agreement
from tasks.training.preferences.pairs import pairs_of, read_records

CODE_VERSION = 1  # raise by hand when a figure changes


def measure_preferences(data: Input, store: str) -> str:
    """Count a folder's records and pairs, and measure how far annotators agree. Returns the URI of the metrics, written
    as STORE/evaluations/<data hash>/preferences.json; an earlier one is reused."""
    where = join(store, "evaluations", data.hash, "preferences.json")
    if exists(where) and read_json(where).get("code_version") == CODE_VERSION:
        return where
    write_json(where, figures(*read_records(data.uri)) | {"schema_version": 1, "code_version": CODE_VERSION})
    return where


def figures(records: list[dict[str, Any]], counts: Counter[str]) -> dict[str, Any]:
    """What the contract `preferences` looks at."""
    pairs = [pair for record in records for pair in pairs_of(record)]
    agreed = agreement(records)
    unfit = counts["read"] - counts["used"] - counts["repeated"]
    longer = [len(pair.chosen) > len(pair.rejected) for pair in pairs if not pair.tie]
    return {
        "records": len(records),
        "unfit_records": unfit,
        "unfit_share": unfit / max(1, counts["read"]),
        "repeated_share": counts["repeated"] / max(1, counts["read"]),
        "pairs": len(pairs),
        "tied_share": sum(pair.tie for pair in pairs) / max(1, len(pairs)),
        "longer_is_better": sum(longer) / max(1, len(longer)),
        "prompts": len({pair.prompt_id for pair in pairs}),
        "synthetic_share": sum(record["synthetic"] for record in records) / max(1, len(records)),
        "domains": dict(sorted(Counter(record["domain"] for record in records).items())),
        "criteria": dict(sorted(Counter(record["criterion"] for record in records).items())),
        "alpha": agreed.alpha,
        "alpha_why": agreed.why or "measured",
        "annotators": agreed.annotators,
        "judged_twice": agreed.units,
    }
