"""From a recipe's stage to a `StageSpec`: everything a trainer needs to know, as JSON, under one content key.

A stage is a pure function of its parents, its data and its configuration; the key is the hash of just these. So the
same stage is never trained twice, and whoever meets its key again finds the artifact or the running job.
"""

from pathlib import Path
from typing import Any, Literal

from tasks.corpus.artifact import NAME, content_hash, file_hash, read_artifact
from tasks.corpus.lineage import walk
from tasks.corpus.shards import is_shard as not_a_marker
from tasks.corpus.storage import LocalStore, exists, join, open_store
from tasks.errors import ConfigError, DataError
from tasks.settings import StrictModel
from tasks.training.origin import Origin
from tasks.training.recipe import BaseStage, Stage, TokenizerStage, TuningStage, load_recipe

CODE_VERSION = 3  # raise by hand when the output of any stage may change


class Input(StrictModel):
    """Something that a stage reads: where it lies, the hash of its content, and whether it is an artifact."""

    uri: str
    hash: str
    artifact: bool = True


class StageSpec(StrictModel):
    """One stage, ready to run anywhere that reaches the store."""

    schema_version: Literal[1] = 1
    recipe: str
    stage: str
    kind: str
    key: str
    job: str
    artifact: str
    store: str
    config: Stage
    parents: dict[str, Input]
    data: dict[str, Input]
    code_version: int = CODE_VERSION
    ranks: int | None = None  # processes that a continued job runs on, where they are not the recipe's

    @property
    def finished(self) -> bool:
        """Whether the artifact is there."""
        return exists(join(self.artifact, NAME))


def plan_stage(
    recipe: str,
    stage: str,
    *,
    store: str,
    home: str,
    corpus: str = "",
    instructions: str = "",
    preferences: str = "",
    parents: dict[str, str] | None = None,
) -> StageSpec:
    """The spec of one stage of a recipe.

    `parents` maps stage names to artifact URIs; `corpus` is the folder of a curated corpus, `instructions` a folder
    of instruction shards, `preferences` one of preference records. Raises ConfigError when an input that the stage
    reads is not given, DataError when it is not finished.
    """
    plan = load_recipe(recipe)
    config = plan.stage(stage)
    given = {"corpus": corpus, "instructions": instructions, "preferences": preferences}
    inputs = {name: _input(given[name], name, stage) for name in config.data}
    if isinstance(config, TokenizerStage | BaseStage) and config.base:
        inputs["base"] = _base_model(config.base)
    ancestors = {}
    for role, name in plan.parents(stage).items():
        uri = (parents or {}).get(name, "")
        if not uri:
            raise ConfigError(f"stage '{stage}' needs the artifact of stage '{name}'; give its URI in `parents`")
        ancestors[role] = Input(uri=_absolute(uri), hash=read_artifact(uri).hash)
    return spec_of(plan.name, config, store=store, home=home, data=inputs, parents=ancestors)


def spec_of(
    recipe: str,
    config: Stage,
    *,
    store: str,
    home: str,
    data: dict[str, Input],
    parents: dict[str, Input],
    purpose: list[str] | None = None,
) -> StageSpec:
    """The spec of a stage whose inputs are known. `purpose` tells apart what is equal in all else, e.g. two domains'
    trainings on the same records."""
    if isinstance(config, TuningStage) and config.replay:
        parents = {**parents, "tokenizer": _pretraining_data(parents["model"].uri, config.name)}
    placeless: Any = {"name": True, "base": {"folder"}}  # the key says what a thing is, not where it lies
    identity = {
        "config": config.model_dump(exclude=placeless),
        "parents": {role: item.hash for role, item in parents.items()},
        "data": {name: item.hash for name, item in data.items()},
        "code_version": CODE_VERSION,
    }
    key = content_hash(identity | ({"purpose": purpose} if purpose else {}))[:32]
    return StageSpec(
        recipe=recipe,
        stage=config.name,
        kind=config.kind,
        key=key,
        job=str(Path(home).absolute() / "jobs" / key),
        artifact=join(_absolute(store), "artifacts", config.name, key),
        store=_absolute(store),
        config=config,
        parents=parents,
        data=data,
    )


def _input(uri: str, name: str, stage: str) -> Input:
    if not uri:
        raise ConfigError(f"stage '{stage}' reads {name}, but no URI was given for it; pass --{name} URI")
    return identify(uri)


def identify(uri: str) -> Input:
    """What lies at a URI, by its content: an artifact, or a folder of shards. Raises DataError when it is neither."""
    if exists(join(uri, NAME)):
        return Input(uri=_absolute(uri), hash=read_artifact(uri).hash)
    store = open_store(uri)
    files = {entry.key: file_hash(store, entry.key).sha256 for entry in store.list() if is_shard(entry.key)}
    if not files:
        raise DataError(f"{uri}: neither a finished artifact nor a folder of shards; name one that is")
    return Input(uri=store.uri, hash=content_hash(files), artifact=False)


def _pretraining_data(uri: str, stage: str) -> Input:
    """The tokenizer artifact, with its token shards, that a model descends from."""
    for ancestor in walk(uri):
        if ancestor.artifact and ancestor.artifact.kind == "tokenizer" and not ancestor.problem:
            return Input(uri=_absolute(ancestor.uri), hash=ancestor.artifact.hash)
    raise ConfigError(
        f"stage '{stage}' replays pretraining data, but no token shards are among the ancestors of {uri}; "
        "set `replay: 0` in the recipe"
    )


def _base_model(origin: Origin) -> Input:
    """A base model by the content of its files."""
    files = origin.files()
    store = LocalStore(files[0].parent)
    return Input(
        uri=str(files[0].parent),
        hash=content_hash({path.name: file_hash(store, path.name).sha256 for path in files}),
        artifact=False,
    )


def _absolute(uri: str) -> str:
    """The URI as a trainer with another working directory understands it."""
    return open_store(uri).uri


def is_shard(key: str) -> bool:
    """Whether an object is data that a stage reads; status files beside it are not."""
    return not_a_marker(key) and key.endswith((".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst"))
