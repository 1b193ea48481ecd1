"""Other thresholds for a finished run, from the signals that are there.

Curated text is written anew only for shards whose kept documents or cut spans changed; of the others not a byte of text
is read: candidates of deduplication have been found among all documents that rules could let pass, and their shingle
sets lie ready. Another similarity threshold alone finds other candidates, whose text has to be read.
"""

from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.corpus.lease import Lease
from tasks.corpus.manifest import NAME as MANIFEST
from tasks.corpus.manifest import Manifest, read_manifest, total_bytes
from tasks.corpus.storage import join, write_json
from tasks.curation.cluster import dask_client
from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.steps import Progress, cluster_duplicates, publish, whole_run, write_verdicts
from tasks.errors import ConfigError


def recut(
    output: str,
    curation: str,
    *,
    index: str | None = None,
    workers: int = 2,
    scheduler: str | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Decide a run's documents by another configuration.

    Returns `publish`'s summary, and with it the number of shards whose text was written anew.

    Raises ConfigError when that configuration asks for signals that were not measured: then curate again.
    """
    manifest = read_manifest(output)
    changed = _with(manifest, output, curation)
    work = content_hash(changed.model_dump())
    with Lease(output, work, f"curation of snapshot {changed.snapshot}"):
        write_json(join(output, MANIFEST), changed.model_dump())
    rewritten = 0
    with whole_run(output, work), dask_client(workers, scheduler):
        cluster_duplicates(output, index=index)
        for group in changed.groups:
            rewritten += write_verdicts(output, group, on_progress=on_progress)["rewritten"]
        published = publish(output)
    return {**published, "shards": len(changed.shards), "bytes": total_bytes(changed.shards), "rewritten": rewritten}


def _with(manifest: Manifest, output: str, curation: str) -> Manifest:
    config, before = load_curation(curation), CurationConfig.model_validate(manifest.curation)
    passages = before.measuring_passages()
    other = [level for level, own in config.measuring_passages().items() if passages.get(level) != own]
    if config.signals_hash != before.signals_hash or other:
        differing = ", ".join([*_differing(before, config), *(f"dedup.{level}" for level in other)])
        raise ConfigError(
            f"{curation}: other signals than {output} has ({differing}); run `python -m tasks curate` with it, "
            "or change thresholds alone"
        )
    return manifest.model_copy(update={"curation": config.model_dump()})


def _differing(before: CurationConfig, after: CurationConfig) -> list[str]:
    """What signals depend on and is not the same in both."""
    old, new = before.measuring(), after.measuring()
    names = [name for name in new if name != "rules" and new[name] != old.get(name)]
    for name in sorted(set(old["rules"]) | set(new["rules"])):
        own, other = old["rules"].get(name, {}), new["rules"].get(name, {})
        names += [f"rules.{name}.{key}" for key in sorted(set(own) | set(other)) if own.get(key) != other.get(key)]
    return names
