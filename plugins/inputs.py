"""What a run works on, chosen from its form, its partition or the event that started it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import join, open_store
from tasks.errors import DataError
from tasks.settings import Settings

DEFAULT_RECIPE = "tiny"


class NoSnapshot(DataError):
    """Nothing landed on that date."""


def choose_snapshot(landing: str, wanted: str | None) -> tuple[str, str]:
    """Date and URI of the snapshot `wanted`, or of the newest one. Raises NoSnapshot."""
    from tasks.curation.steps import snapshots

    available = snapshots(landing)
    if not available:
        raise NoSnapshot(
            f"{landing}: no shards; expected <date>/<source>/part-*.jsonl.zst (or .jsonl.gz, .jsonl, .parquet, .txt)"
        )
    snapshot = wanted or max(available)
    if snapshot not in available:
        dates = ", ".join(sorted(available, reverse=True)[:10])
        raise NoSnapshot(f"{landing}: no snapshot {snapshot}; the newest are {dates}")
    return snapshot, available[snapshot]


def places(snapshot: str, landing: str, config: Settings) -> dict[str, str]:
    """Where a snapshot's corpus goes, and the index of earlier ones that it is compared with: {"output", "index"}."""
    # A folder without dates is read as a whole each time: its documents are no duplicates of themselves.
    dated = landing.rstrip("/").endswith(f"/{snapshot}")
    return {
        "output": join(config.store, "corpus", snapshot),
        "index": join(config.store, "index") if dated else "",
    }


def choose_repair(params: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """What `repair_shards` works on: a snapshot's places and the plan of its repair. Raises DataError."""
    from tasks.corpus.manifest import NAME, read_manifest
    from tasks.corpus.storage import exists
    from tasks.curation.repair import corpus_hash, plan_repair

    snapshot = params["snapshot"]
    output = join(config.store, "corpus", snapshot)
    if not exists(join(output, NAME)):
        raise DataError(f"{output}: snapshot {snapshot} was never curated; run curate_corpus for it")
    before = corpus_hash(output) or ""
    chosen = {name: params[name] for name in ("groups", "pattern", "only_failed")}
    plan = plan_repair(output, **chosen)
    landing = read_manifest(output).landing
    return {"snapshot": snapshot, "before": before, **places(snapshot, landing, config), **plan}


def choose_inputs(
    recipe_name: str, params: Mapping[str, Any], events: Sequence[Any], config: Settings
) -> dict[str, Any]:
    """Corpus, records, stages and given parents of one run of the cascade.

    Returns {"corpus": URI, "instructions": URI, "instructions_hash", "stages": [names], "parents": {stage: URI}}, and
    "preferences" and "preferences_hash" where a stage of the recipe reads them. Raises DataError when there is no
    corpus, a parent is missing, or first and last stage are the wrong way round.
    """
    from tasks.training.plan import identify
    from tasks.training.recipe import load_recipe

    recipe = load_recipe(recipe_name)
    names = [stage.name for stage in recipe.stages]
    first, last = params.get("first_stage") or names[0], params.get("last_stage") or names[-1]
    if names.index(first) > names.index(last):
        raise DataError(f"first stage '{first}' comes after last stage '{last}'; the order is {', '.join(names)}")
    corpus = params.get("corpus") or _corpus_of(events) or _newest_corpus(config.store)
    instructions = params.get("instructions") or instructions_of(config)
    chosen: dict[str, Any] = {
        "corpus": corpus,
        "instructions": instructions,
        "instructions_hash": identify(instructions).hash,
        "stages": names[names.index(first) : names.index(last) + 1],
        "parents": {},
    }
    if "preferences" in recipe.data:
        chosen["preferences"] = params.get("preferences") or preferences_of(config)
        chosen["preferences_hash"] = identify(chosen["preferences"]).hash
    if params.get("parent"):
        chosen["parents"] = ancestry(params["parent"])
    elif first != names[0]:
        chosen["parents"] = _finished(recipe_name, names[: names.index(first)], chosen, config)
    return chosen


def cascade_dag_id(recipe_name: str) -> str:
    """`train_cascade` for the default recipe, else `train_cascade_<recipe>`."""
    return "train_cascade" if recipe_name == DEFAULT_RECIPE else f"train_cascade_{recipe_name}"


def instructions_of(config: Settings) -> str:
    """The landing zone's own instruction records, else the sample's. Raises DataError when there are none."""
    return _records_of("instructions", config)


def preferences_of(config: Settings) -> str:
    """The landing zone's own preference records, else the sample's. Raises DataError when there are none."""
    return _records_of("preferences", config)


def _records_of(kind: str, config: Settings) -> str:
    places = [join(config.data, kind), join(str(config.home), "landing", kind)]
    for place in places:
        if any(open_store(place).list()):
            return place
    name = kind.removesuffix("s")
    raise DataError(f"no {name} records in {' or '.join(places)}; `python -m tasks harvest` makes a sample")


def ancestry(artifact: str) -> dict[str, str]:
    """The artifact and those it was made from, by stage name: {stage: URI}."""
    sealed = read_artifact(artifact)
    found = {} if sealed.kind in ("corpus", "instructions") else {sealed.stage: artifact}
    for parent in sealed.parent_uris:
        found = ancestry(parent) | found
    return found


def _corpus_of(events: Sequence[Any]) -> str | None:
    """The corpus that the newest event announces."""
    announced = [event.extra["corpus"] for event in events if "corpus" in event.extra]
    return announced[-1] if announced else None


def _newest_corpus(store: str) -> str:
    entries = open_store(join(store, "corpus")).list()
    dates = [entry.key.split("/")[0] for entry in entries if entry.key.endswith("/artifact.json")]
    if not dates:
        raise DataError(f"{store}: no curated corpus yet; run curate_corpus first, or name one in the form")
    return join(store, "corpus", max(dates))


def _finished(recipe: str, stages: list[str], chosen: dict[str, Any], config: Settings) -> dict[str, str]:
    """Artifacts of the stages before the first one, which must have been trained from the same inputs before."""
    from tasks.training.plan import plan_stage

    parents: dict[str, str] = {}
    for stage in stages:
        spec = plan_stage(
            recipe,
            stage,
            store=config.store,
            home=str(config.home),
            corpus=chosen["corpus"],
            instructions=chosen["instructions"],
            preferences=chosen.get("preferences", ""),
            parents=parents,
        )
        if not spec.finished:
            raise DataError(
                f"stage '{stage}' was not trained from {chosen['corpus']} yet; start at it, or name a parent artifact"
            )
        parents[stage] = spec.artifact
    return parents
