"""Documents that must not be used any more, by their owner's right or by law: one record each, kept for ever.

They lie beside the index of snapshots, or in the output folder of a run that has none. From the next clustering on,
such a document is dropped with the reason `taken_down`, and takes no part: a twin that lost to it comes back.
"""

import re
from datetime import UTC, datetime

import orjson

from tasks.corpus.storage import open_store, to_json
from tasks.errors import DataError

SCHEMA_VERSION = 1
FOLDER = "takedowns"
RULE = "taken_down"


def take_down(root: str, doc_id: str, reason: str) -> bool:
    """Record it. False when it was recorded before. Raises DataError for what is no doc_id."""
    if not re.fullmatch(r"[0-9a-f]{32}", doc_id):
        raise DataError(f"{doc_id!r}: expected a whole doc_id, 32 hex digits, as `why` prints it")
    record = {
        "schema_version": SCHEMA_VERSION,
        "doc_id": doc_id,
        "reason": reason,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return open_store(root).write(f"{FOLDER}/{doc_id}.json", to_json(record), if_absent=True)


def taken_down(root: str) -> dict[str, str]:
    """doc_id → reason of every document that was taken down."""
    store = open_store(root)
    records = [orjson.loads(store.read(entry.key)) for entry in store.list(f"{FOLDER}/")]
    return {record["doc_id"]: record["reason"] for record in records}
