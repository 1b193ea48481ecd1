"""Repair: compute the signals of failed shards again, and of no others, after their cause is mended.

`plan_repair` chooses them and looks at their files anew, because a damaged one has been replaced. The steps that follow
are curation's own: finished shards are recognised by their content keys, so clustering runs from stored signatures and
text is written anew only where survivors changed. The result is an undisturbed run's, byte for byte.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.corpus.lease import Lease
from tasks.corpus.manifest import NAME as MANIFEST
from tasks.corpus.manifest import Manifest, Shard, checksum, read_manifest
from tasks.corpus.storage import exists, join, open_store, read_json, write_json
from tasks.curation.config import CurationConfig
from tasks.curation.failures import read_failures
from tasks.curation.signal_files import read_status, signals_key
from tasks.errors import DataError, StorageError

SCHEMA_VERSION = 1
FOLDER = "repairs"


def plan_repair(
    output: str, *, groups: Sequence[str] = (), pattern: str = "", only_failed: bool = True
) -> dict[str, Any]:
    """Choose the shards to repair and take their inventory again; their signals are computed by the next step.

    Chosen are the shards of `groups` (default: all) whose path fits `pattern` (`*` and `?`; default: any), and of them
    those that failed; with `only_failed` off, also finished ones, whose signals are thrown away. Returns {"groups"
    to compute, "all_groups" to decide, "shards", "replaced" (paths whose file has changed)}. Raises DataError when
    nothing fits or a file is gone.
    """
    manifest = read_manifest(output)
    config = CurationConfig.model_validate(manifest.curation)
    unknown = sorted(set(groups) - set(manifest.groups))
    if unknown:
        raise DataError(f"{output}: no group {', '.join(unknown)}; its groups are {', '.join(manifest.groups)}")
    fitting = [
        shard
        for shard in manifest.shards
        if (not groups or shard.group in groups) and (not pattern or fnmatchcase(shard.key, pattern))
    ]
    on_record = {record.id for record in read_failures(output, manifest)}
    failed = {s.id for s in fitting if s.id in on_record or read_status(output, s, config) is None}
    chosen = [shard for shard in fitting if shard.id in failed or not only_failed]
    if not chosen:
        what = "failed shard" if only_failed else "shard"
        raise DataError(f"{output}: nothing to repair: no {what} fits the groups and the pattern that were given")
    renewed = _look_again(manifest, {shard.key for shard in chosen})
    before = {shard.key: shard.checksum for shard in chosen}
    replaced = [shard.key for shard in renewed.shards if before.get(shard.key, shard.checksum) != shard.checksum]
    with Lease(output, content_hash(renewed.model_dump()), f"repair of snapshot {manifest.snapshot}"):
        if renewed != manifest:
            write_json(join(output, MANIFEST), renewed.model_dump())
        for shard in chosen:
            if not only_failed and shard.key not in replaced:  # another content has signals of its own
                open_store(output).delete(f"signals/{signals_key(shard, config)}.json")
    return {
        "groups": sorted({shard.group for shard in chosen}),
        "all_groups": manifest.groups,
        "shards": [shard.key for shard in chosen],
        "replaced": replaced,
    }


def _look_again(manifest: Manifest, keys: set[str]) -> Manifest:
    """The manifest with size, checksum and identity of some shards as they are now; groups stay."""
    store, seen = open_store(manifest.landing), Counter[str]()
    shards: list[Shard] = []
    for shard in manifest.shards:
        if shard.key in keys:
            size = store.size(shard.key)
            if size is None:
                raise DataError(
                    f"{shard.key}: no longer in {manifest.landing}; put it back, or run curate_corpus for this "
                    "snapshot, which takes the whole inventory again"
                )
            found = {"size": size, "checksum": _checksum(manifest.landing, shard)}
            shards.append(shard.model_copy(update=found).identified(seen))
        else:
            shards.append(shard.identified(seen))
    return manifest.model_copy(update={"shards": shards})


def _checksum(landing: str, shard: Shard) -> str:
    try:
        return checksum(open_store(landing), shard.key)
    except StorageError as error:
        raise StorageError(f"{shard.key}: still cannot be read: {error}") from error


def record_repair(output: str, run: str, **facts: Any) -> str:
    """Put down who repaired what and why, under the id of the run that did it. Returns the record's URI."""
    where = join(output, FOLDER, f"{content_hash(run)[:16]}.json")
    at = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(where, {"schema_version": SCHEMA_VERSION, "run": run, "at": at, **facts})
    return where


def read_repairs(output: str) -> list[dict[str, Any]]:
    """All repairs of a snapshot, the newest first."""
    folder = join(output, FOLDER)
    records = [read_json(join(folder, entry.key)) for entry in open_store(folder).list()]
    return sorted(records, key=lambda record: record["at"], reverse=True)


def corpus_hash(output: str) -> str | None:
    """Hash of the corpus that is published now; None when there is none."""
    from tasks.corpus.artifact import NAME, read_artifact

    return read_artifact(output).hash if exists(join(output, NAME)) else None
