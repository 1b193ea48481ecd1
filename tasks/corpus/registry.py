"""Which model of a line is the candidate and which is released: one small file a line, changed by compare-and-swap."""

from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import DataError

SCHEMA_VERSION = 1
Pointer = Literal["candidate", "released"]


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
) -> dict[str, Any]:
    """Point `candidate` or `released` of a line at an artifact; returns the new registry.

    `expected_released` is the hash the caller built upon: when another model has been released since, DataError is
    raised and nothing changes. The same pointer set twice is recorded once.
    """
    artifact = read_artifact(artifact_uri)
    entry = {"uri": artifact_uri, "hash": artifact.hash}
    store = open_store(join(store_uri, "registry"))
    while True:
        before, registry = _read(store_uri, line)
        released = (registry["released"] or {}).get("hash")
        if expected_released is not None and released != expected_released:
            raise DataError(
                f"{line}: built upon released model {expected_released[:12]}, but {str(released)[:12]} has been "
                "released since; rebase the candidate on it and run its gates again"
            )
        if registry[to] == entry:
            return registry
        registry[to] = entry
        when = datetime.now(UTC).isoformat(timespec="seconds")
        registry["history"] = [*registry["history"], {"pointer": to, "at": when, **entry}]
        if store.compare_and_swap(f"{line}.json", before, to_json(registry)):
            return registry
