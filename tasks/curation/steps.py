"""The steps of curation, each a plain function on URIs: inventory, signals, clusters, verdicts, publish.

Every step is idempotent: it recognises finished work by its content key and does the rest. Airflow runs them as
tasks; `python -m tasks curate` runs them one after another.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tasks.corpus.artifact import content_hash, withdraw, write_artifact
from tasks.corpus.lease import Lease
from tasks.corpus.manifest import DATE, Manifest, Shard, list_shards, read_manifest, take_inventory, total_bytes
from tasks.corpus.manifest import NAME as MANIFEST
from tasks.corpus.storage import join, open_store, to_json, write_json
from tasks.curation import signal_files, signals, verdict_files
from tasks.curation.cluster import dask_client, map_shards
from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.dedup import walk
from tasks.curation.dedup.duplicate_files import cluster, read_summary
from tasks.curation.failures import allowance, freeze, keep_record, present, read_failures
from tasks.curation.report import add_up
from tasks.curation.signal_files import read_status, write_signals
from tasks.curation.verdict_files import read_verdict_status, write_shard_verdicts
from tasks.errors import ConfigError, DataError, StorageError

log = logging.getLogger(__name__)
Progress = Callable[[dict[str, Any]], None]
Failed = tuple[Shard, Exception]
CODE_VERSION = 1
REPORT = "report.json"


def snapshots(landing: str) -> dict[str, str]:
    """Snapshot date → URI of its folder.

    Folders named YYYY-MM-DD are snapshots. A landing zone without any is one snapshot, dated by its newest shard (UTC).
    """
    dates: dict[str, str] = {}
    newest = ""
    for entry in list_shards(landing):
        first = entry.key.split("/")[0]
        if "/" in entry.key and DATE.fullmatch(first):
            dates[first] = join(landing, first)
        newest = max(newest, entry.modified.strftime("%Y-%m-%d"))
    if not dates and newest:
        dates[newest] = landing
    return dict(sorted(dates.items()))


def inventory(
    landing: str, output: str, snapshot: str, *, curation: str = "default", max_groups: int = 64
) -> dict[str, Any]:
    """List the snapshot's shards and write the manifest. The groups it names are what later steps map over.

    Raises StorageError when another run is at work on this output.
    """
    config = load_curation(curation)
    _apart(landing, output)
    manifest = take_inventory(landing, snapshot, config.model_dump(), max_groups)
    with _at_work(output, manifest):
        write_json(join(output, MANIFEST), manifest.model_dump())
    return {
        "manifest": join(output, MANIFEST),
        "work": _work(manifest),
        "groups": manifest.groups,
        "shards": len(manifest.shards),
        "bytes": total_bytes(manifest.shards),
    }


def _work(manifest: Manifest) -> str:
    return content_hash(manifest.model_dump())


def _at_work(output: str, manifest: Manifest, group: str = "") -> Lease:
    """A lease on the output, or on one group of it. Who does the same waits for its end, and finds the work done."""
    what = f"curation of snapshot {manifest.snapshot}"
    return Lease(output, _work(manifest), what, part=group, patient=True)


@contextmanager
def whole_run(output: str, work: str) -> Iterator[None]:
    """Hold the output from one step to the next. `work` is what the inventory returned.

    Waits for the end of a run that does the same. Raises StorageError when one that does something else is at work
    there, or has begun since the inventory.
    """
    with Lease(output, work, f"curation of snapshot {read_manifest(output).snapshot}", patient=True):
        if _work(read_manifest(output)) != work:
            raise StorageError(f"{output}: another run has begun here since; wait for its end, or name another output")
        yield


def _apart(landing: str, output: str) -> None:
    """Output inside the landing folder would be read as input by the next run."""
    inner, outer = (_resolved(uri) + "/" for uri in (output, landing))
    if inner.startswith(outer):
        raise ConfigError(f"output {output} lies inside the input {landing}; name a folder beside it")


def _resolved(uri: str) -> str:
    store = open_store(uri)
    here = store.local()
    return str(here.resolve()) if here else store.uri


def _load(output: str) -> tuple[Manifest, CurationConfig]:
    manifest = read_manifest(output)
    return manifest, CurationConfig.model_validate(manifest.curation)


def compute_signals(
    output: str,
    group: str,
    *,
    workers: int = 2,
    scheduler: str | None = None,
    on_progress: Progress | None = None,
    budget: float = 0.0,
    last_try: bool = True,
) -> dict[str, Any]:
    """Measure every shard of a group. Raises DataError or StorageError, after all others are done, when one failed.

    With a `budget`, a share of the run's shards may fail and are named in `failed`; one whose store may come back
    only at the `last_try`.
    """
    results, failures = _each_shard(output, group, "signals", write_signals, workers, scheduler, on_progress)
    if failures and not _affordable(output, failures, budget, last_try):
        raise _failed(group, len(results), failures)
    for shard, error in failures:
        log.warning("%s: left out, within the budget of failed shards: %s", shard.key, error)
    return {
        "group": group,
        "shards": len(results),
        "failed": [shard.key for shard, _ in failures],
        "documents": sum(result["documents"] for result in results),
        "bytes": sum(result["raw_bytes"] for result in results),
        "reused": sum(result["reused"] for result in results),
    }


def _affordable(output: str, failures: list[Failed], budget: float, last_try: bool) -> bool:
    """Whether the run can go on without the shards that failed in it so far."""
    if not last_try and any(isinstance(error, StorageError) for _, error in failures):
        return False
    manifest = read_manifest(output)
    failed = {record.id for record in read_failures(output, manifest) if record.step == "signals"}
    return len(failed) <= allowance(manifest, budget)


def cluster_duplicates(
    output: str,
    *,
    index: str | None = None,
    workers: int = 2,
    scheduler: str | None = None,
    budget: float = 0.0,
    enter: bool = True,
) -> dict[str, Any]:
    """Find duplicates over all shards, and with an `index` among survivors of earlier snapshots.

    The index gets an entry of this snapshot's survivors, unless they are not to `enter`. Raises DataError when more
    shards have no signals than the `budget`, a share of them, allows; those are left out from here on. Raises
    ConfigError when the index was made with another configuration.
    """
    manifest, config = _load(output)
    missing = [shard for shard in manifest.shards if read_status(output, shard, config) is None]
    with _at_work(output, manifest), dask_client(workers, scheduler) as client:
        found = cluster(freeze(output, manifest, missing, budget), config, output, client, index, enter=enter)
    return {**found, "left_out": len(missing)}


def write_verdicts(
    output: str, group: str, *, workers: int = 2, scheduler: str | None = None, on_progress: Progress | None = None
) -> dict[str, Any]:
    """Decide every document of a group and write verdicts and curated text."""
    results, failures = _each_shard(output, group, "verdicts", write_shard_verdicts, workers, scheduler, on_progress)
    if failures:
        raise _failed(group, len(results), failures)
    names = ("read", "kept", "dropped", "quarantined")
    return {
        "group": group,
        "shards": len(results),
        **{name: sum(result[name] for result in results) for name in names},
        "reused": sum(result["reused"] for result in results),
        "rewritten": sum(result["rewritten"] for result in results),
    }


def _each_shard(
    output: str,
    group: str,
    name: str,
    step: Callable[..., dict[str, Any]],
    workers: int,
    scheduler: str | None,
    on_progress: Progress | None,
) -> tuple[list[dict[str, Any]], list[Failed]]:
    """Results of the shards that the step could do, and the others with their errors, which are put on record."""
    manifest, config = _load(output)
    shards = manifest.group(group)
    if name != "signals":
        clustered = {shard.id for shard in present(output, manifest).shards}
        shards = [shard for shard in shards if shard.id in clustered]
    done: list[dict[str, Any]] = []

    def report(shard: Shard, result: dict[str, Any]) -> None:
        done.append(result)
        if on_progress:
            count = "documents" if "documents" in result else "read"
            size = sum(item["raw_bytes"] if "raw_bytes" in item else item["bytes"]["read"] for item in done)
            on_progress(
                {
                    "group": group,
                    "shard": shard.key,
                    "shards_done": len(done),
                    "shards": len(shards),
                    "documents": sum(item[count] for item in done),
                    "bytes": size,
                    "reused": result["reused"],
                }
            )

    with _at_work(output, manifest, group), dask_client(workers, scheduler) as client:
        results, failures = map_shards(
            client, step, shards, manifest.landing, open_store(output).uri, config.model_dump(), on_done=report
        )
    failed = {shard.id for shard, _ in failures}
    try:
        keep_record(output, name, [shard for shard in shards if shard.id not in failed], failures)
    except StorageError as why:
        if failures:  # without a record no budget could count them; and what went wrong first is what is told
            raise _failed(group, len(results), failures) from why
        raise
    return results, failures


def _failed(group: str, done: int, failures: list[Failed]) -> DataError | StorageError:
    lines = [f"{shard.key}: {type(error).__name__}: {error}" for shard, error in failures]
    # A store may come back, so that kind is retried; the same data fails again.
    kind = StorageError if all(isinstance(error, StorageError) for _, error in failures) else DataError
    return kind(
        f"{len(failures)} of {done + len(failures)} shards of {group} failed; mend the cause and clear this task "
        "alone:\n  " + "\n  ".join(lines)
    )


def publish(output: str) -> dict[str, Any]:
    """Add all counts up, check that nothing is lost, write `report.json` and the corpus's `artifact.json`.

    While files are replaced there is no `artifact.json`, so that nobody takes a mixture of two runs for a corpus.
    """
    manifest, config = _load(output)
    with _at_work(output, manifest) as lease:
        return _publish(output, manifest, config, lease)


def _publish(output: str, manifest: Manifest, config: CurationConfig, lease: Lease) -> dict[str, Any]:
    store = open_store(output)
    whole, manifest = manifest, present(output, manifest)
    wanted = {shard.id for shard in manifest.shards}
    statuses = []
    for shard in manifest.shards:
        status = read_verdict_status(output, shard, config)
        if status is None:
            raise DataError(
                f"{shard.key}: no verdicts of this configuration, or damaged ones; clear the verdicts of {shard.group}"
            )
        statuses.append(status)
    clusters = read_summary(store)
    report = add_up(manifest.snapshot, statuses, clusters)
    left_out = sorted(shard.key for shard in whole.shards if shard.id not in wanted)
    if left_out:
        report["left_out"] = left_out
    lease.check()
    store.clear_unfinished()
    stale = [  # files of shards that an earlier run had and this one has not
        entry.key
        for folder in ("curated", "verdicts", "status")
        for entry in store.list(f"{folder}/")
        if entry.key.split("/")[1].split(".")[0] not in wanted
    ]
    if stale or not store.exists(REPORT) or store.read(REPORT) != to_json(report):
        withdraw(output)
        for key in stale:
            store.delete(key)
        store.write(REPORT, to_json(report))
    versions = [
        CODE_VERSION,
        signals.CODE_VERSION,
        signal_files.CODE_VERSION,
        walk.CODE_VERSION,
        verdict_files.CODE_VERSION,
    ]
    artifact = write_artifact(
        output,
        only=("curated/", "verdicts/", REPORT),
        replace=True,
        kind="corpus",
        stage="curate",
        key=content_hash([clusters["key"], versions])[:32],
        data={shard.key: shard.checksum for shard in manifest.shards},
        config_hash=config.hash,
        code_version=CODE_VERSION,
        expected={name: sha256 for status in statuses for name, sha256 in status["files"].items()},
        metrics={name: report[name] for name in ("read", "kept", "dropped", "quarantined")},
    )
    names = ("snapshot", "read", "kept", "dropped", "quarantined", "bytes", "unreadable")
    summary = {**{name: report[name] for name in names}, "artifact": output, "hash": artifact.hash}
    return {**summary, "left_out": len(left_out)}
