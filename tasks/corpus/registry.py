"""Which model of a line is the candidate and which is released: one small file a line, changed by compare-and-swap."""

from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import DataError

SCHEMA_VERSION = 1
Pointer = Literal["candidate", "released"]


class ReleaseMoved(DataError):
    """Another model has been released since the one that a candidate was built upon."""


def read_registry(store_uri: str, line: str) -> dict[str, Any]:
    """`{"candidate": {uri, hash} | None, "released": …, "history": […]}` of a model line."""
    return _read(store_uri, line)[1]


def _read(store_uri: str, line: str) -> tuple[bytes | None, dict[str, Any]]:
    store = open_store(join(store_uri, "registry"))
    key = f"{line}.json"
    if not store.exists(key):
        return None, {"schema_version": SCHEMA_VERSION, "candidate": None, "released": None, "history": []}
    data = store.read(key)
    return data, orjson.loads(data)


def promote(
    store_uri: str,
    line: str,
    artifact_uri: str,
    to: Pointer = "candidate",
    *,
    expected_released: str | None = None,
    by: str = "",
    why: str = "",
    run: str = "",
) -> dict[str, Any]:
    """Point `candidate` or `released` of a line at an artifact; returns the new registry.

    `expected_released` is the hash the caller built upon, empty for none: when another model has been released since,
    ReleaseMoved is raised and nothing changes. `by`, `why` and the `run` that did it go on record. The same pointer set
    twice is recorded once.
    """
    artifact = read_artifact(artifact_uri)
    entry = {"uri": artifact_uri, "hash": artifact.hash}
    store = open_store(join(store_uri, "registry"))
    while True:
        before, registry = _read(store_uri, line)
        released = (registry["released"] or {}).get("hash", "")
        if expected_released is not None and released != expected_released:
            raise ReleaseMoved(
                f"{line}: built upon released model {expected_released[:12] or 'none'}, but {released[:12] or 'none'} "
                "has been released since; rebase the candidate on it and run its gates again"
            )
        if registry[to] == entry:
            return registry
        registry[to] = entry
        when = datetime.now(UTC).isoformat(timespec="seconds")
        said = {"by": by, "why": why} if by else {}
        said |= {"run": run} if run else {}
        registry["history"] = [*registry["history"], {"pointer": to, "at": when, **entry, **said}]
        if store.compare_and_swap(f"{line}.json", before, to_json(registry)):
            return registry


def roll_back(store_uri: str, line: str, *, expected_released: str, by: str, why: str) -> dict[str, Any]:
    """Release the model again that was released before `expected_released`; returns the new registry.

    Raises DataError when there is none, or when another model than the expected one is released by now.
    """
    stack: list[dict[str, Any]] = []  # what was released in turn; to release an old one again is to go back to it
    for item in read_registry(store_uri, line)["history"]:
        if item["pointer"] == "released":
            known = [number for number, other in enumerate(stack) if other["hash"] == item["hash"]]
            stack = stack[: known[0] + 1] if known else [*stack, item]
    if len(stack) < 2:
        raise DataError(f"{line}: no model was released before {expected_released[:12]}; nothing to go back to")
    uri = stack[-2]["uri"]
    return promote(store_uri, line, uri, to="released", expected_released=expected_released, by=by, why=why)


def released_by(store_uri: str, line: str, model: str, run: str) -> bool:
    """Whether the line's last release is of the model with the hash `model`, and was that run's doing."""
    releases = [item for item in read_registry(store_uri, line)["history"] if item["pointer"] == "released"]
    return bool(releases) and (releases[-1]["hash"], releases[-1].get("run")) == (model, run)


def model_lines(store_uri: str) -> list[str]:
    """Names of the model lines that have a registry file."""
    entries = open_store(join(store_uri, "registry")).list()
    return sorted(entry.key.removesuffix(".json") for entry in entries if entry.key.endswith(".json"))
