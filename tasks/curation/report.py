"""The run's `report.json`: all shards added up, and the conservation that must hold."""

from typing import Any

from tasks.errors import ConservationError

SCHEMA_VERSION = 1
CLUSTERS = ("documents", "duplicates", "clusters", "cluster_sizes", "cut_short", "paragraphs", "cut_documents")
PROBLEMS_SHOWN = 1000  # kinds of fault by shard; the verdict files hold every row


def add_up(snapshot: str, statuses: list[dict[str, Any]], clusters: dict[str, Any]) -> dict[str, Any]:
    """Add the shards' counts up. Raises ConservationError when read ≠ kept + dropped + quarantined anywhere."""
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "snapshot": snapshot,
        "read": 0,
        "kept": 0,
        "dropped": 0,
        "quarantined": 0,
        "bytes": {},
        "unreadable_bytes": 0,
        "unreadable": 0,
        "reasons": {},
        "cuts": {},
        "languages": {},
        "sources": {},
        "kinds": {},
        "clusters": {name: clusters[name] for name in CLUSTERS if name in clusters},
        "shards": [],
        "problems": [],
    }
    numbers = ("read", "kept", "dropped", "quarantined", "unreadable_bytes", "unreadable")
    for status in sorted(statuses, key=lambda status: status["shard"]):
        _check(status, status["shard"])
        for name in numbers:
            report[name] += status[name]
        for name in ("bytes", "reasons", "cuts", "languages", "sources", "kinds"):
            _add(report[name], status[name])
        report["shards"].append({name: status[name] for name in ("shard", *numbers, "bytes")})
        report["problems"].extend(status["problems"])
    _check(report, f"snapshot {snapshot}")
    report["problems_total"] = len(report["problems"])
    report["problems"] = report["problems"][:PROBLEMS_SHOWN]
    return report


def _add(total: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, dict):
            _add(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


def _check(counts: dict[str, Any], where: str) -> None:
    for unit, part in (("documents", counts), ("bytes", counts["bytes"])):
        sum_of_parts = part["kept"] + part["dropped"] + part["quarantined"]
        if part["read"] != sum_of_parts:
            raise ConservationError(
                f"{where}: {part['read']} {unit} read, but kept + dropped + quarantined is {sum_of_parts}"
            )
