"""What gates decided, from the results that they left in the store."""

from typing import Any

from tasks.corpus.privacy import excerpt
from tasks.corpus.storage import open_store, read_json

RESULT, DATA_DOCS = "result.json", "data_docs.html"


def read_gates(uri: str) -> list[dict[str, Any]]:
    """Every gate under `uri`, the newest first: its report's id, verdict, how many checks, what was not met."""
    store = open_store(uri)
    listed = list(store.list())
    entries, keys = [entry for entry in listed if entry.key.endswith(f"/{RESULT}")], {entry.key for entry in listed}
    found = []
    for entry in sorted(entries, key=lambda entry: (entry.modified, entry.key), reverse=True):
        result = read_json(f"{store.uri}/{entry.key}")
        folder = entry.key.removesuffix(f"/{RESULT}")
        failed = [outcome for outcome in result["outcomes"] if not outcome["success"]]
        found.append(
            {
                "report": folder,
                "data_docs": f"{folder}/{DATA_DOCS}" in keys,
                "at": entry.modified.isoformat(timespec="seconds"),
                "contract": result["contract"],
                "title": result["title"],
                "verdict": result["verdict"],
                "checks": len(result["outcomes"]),
                "subjects": result["identities"],
                "failures": [_shown(outcome) for outcome in failed],
            }
        )
    return found


def _shown(outcome: dict[str, Any]) -> dict[str, Any]:
    shown = {name: outcome[name] for name in ("severity", "meaning", "expected", "remedy")}
    return {**shown, "observed": excerpt(str(outcome["observed"]), 300, numbers=False)}
