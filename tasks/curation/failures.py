"""Shards that a step could not do: one small record each, kept until the step has done them.

A run may go on without some of its shards (`failed_budget` in the settings); which ones is frozen by the clustering in
`left_out.json`, so that every later step leaves out the same.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from tasks.corpus.manifest import Manifest, Shard
from tasks.corpus.storage import exists, join, open_store, read_json, to_json, write_json
from tasks.errors import DataError, StorageError
from tasks.settings import StrictModel

SCHEMA_VERSION: Literal[1] = 1
FOLDER, LEFT_OUT = "failures", "left_out.json"
LONGEST = 2000  # characters of an error's message
REMEDIES = {
    "DataError": "mend or replace the file, then repair this shard; the repair reads the file as it is then",
    "StorageError": "see that the store answers and that its disk has room, then repair this shard",
    "KilledWorker": "a document of this shard ends its worker, most likely for want of memory: lower max_characters "
    "or max_record_bytes in the curation configuration, or give workers more memory, then repair this shard",
    "MemoryError": "give workers more memory, or lower max_characters, then repair this shard",
}
OTHERWISE = "mend what the message names, then repair this shard"


class Failure(StrictModel):
    """One shard that a step could not do, with the error in words and what to do about it."""

    schema_version: Literal[1] = SCHEMA_VERSION
    id: str
    shard: str
    group: str
    step: str
    kind: str
    message: str
    remedy: str
    at: str


def keep_record(
    output: str, step: str, done: Iterable[Shard], failed: Iterable[tuple[Shard, Exception]]
) -> None:
    """Put down what failed in a step, and take away the records of what is done now."""
    store = open_store(join(output, FOLDER))
    known = {entry.key for entry in store.list()}
    for shard in done:
        if (name := _name(shard.id, step)) in known:
            store.delete(name)
    for shard, error in failed:
        # Raised by the worker's own code, StorageError has a kind of its own where the object is at fault.
        kind = "StorageError" if isinstance(error, StorageError) else type(error).__name__
        record = Failure(
            id=shard.id,
            shard=shard.key,
            group=shard.group,
            step=step,
            kind=kind,
            message=str(error)[:LONGEST],
            remedy=REMEDIES.get(kind, OTHERWISE),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        store.write(_name(shard.id, step), to_json(record.model_dump()))


def read_failures(output: str, manifest: Manifest) -> list[Failure]:
    """What is on record for shards of this manifest, in its order; records of an earlier manifest are not counted."""
    store = open_store(join(output, FOLDER))
    order = {shard.id: number for number, shard in enumerate(manifest.shards)}
    names = [entry.key for entry in store.list()]
    records = [Failure.model_validate(read_json(join(store.uri, name))) for name in names]
    known = [record for record in records if record.id in order]
    return sorted(known, key=lambda record: (order[record.id], record.step))


def allowance(manifest: Manifest, budget: float) -> int:
    """How many shards of a run may fail: the share `budget` of them, rounded down."""
    return int(budget * len(manifest.shards))


def freeze(output: str, manifest: Manifest, missing: list[Shard], budget: float) -> Manifest:
    """The manifest without the shards that have no signals, which are put down in `left_out.json`.

    Raises DataError when more are missing than the budget allows.
    """
    if len(missing) > allowance(manifest, budget):
        allowed = f"; the budget allows {allowance(manifest, budget)}" if budget else ""
        raise DataError(
            f"{len(missing)} shards have no signals yet, e.g. {missing[0].key}{allowed}; clear their group and run it "
            "again, or repair them"
        )
    if missing:
        record = {"schema_version": SCHEMA_VERSION, "shards": sorted(shard.id for shard in missing)}
        write_json(join(output, LEFT_OUT), record)
    else:
        open_store(output).delete(LEFT_OUT)
    return present(output, manifest)


def present(output: str, manifest: Manifest) -> Manifest:
    """The manifest as the clustering saw it: without what it had to leave out."""
    left_out = set(read_json(join(output, LEFT_OUT))["shards"]) if exists(join(output, LEFT_OUT)) else set()
    if not left_out:
        return manifest
    return manifest.model_copy(update={"shards": [shard for shard in manifest.shards if shard.id not in left_out]})


def _name(shard_id: str, step: str) -> str:
    return f"{shard_id}.{step}.json"
