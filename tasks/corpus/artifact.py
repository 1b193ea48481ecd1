"""Artifacts: immutable folders with an `artifact.json` that says what they are and what they came from.

Lineage from a model down to the shards is a walk over these files; see `tasks.cascade.lineage`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from pydantic import Field, ValidationError

from tasks.corpus.storage import Store, exists, join, open_store, read_json, write_json
from tasks.errors import DataError
from tasks.settings import StrictModel, explain

SCHEMA_VERSION: Literal[1] = 1
NAME = "artifact.json"


class FileEntry(StrictModel):
    """One file of an artifact: its SHA-256 and size in bytes."""

    sha256: str
    size: int


class Artifact(StrictModel):
    """What `artifact.json` holds. `hash` covers all but `created`, `metrics` and where the parents lie."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["corpus", "instructions", "tokenizer", "tokens", "model", "reward"]
    stage: str
    key: str = Field(description="content key of the work that made it")
    parents: list[str] = Field(default_factory=list, description="hashes of parent artifacts")
    parent_uris: list[str] = Field(default_factory=list, description="where they lay when this was made")
    data: dict[str, str] = Field(default_factory=dict, description="hashes of data that is no artifact")
    config_hash: str
    code_version: int
    metrics: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, FileEntry] = Field(default_factory=dict)
    created: str = ""
    hash: str = ""


def content_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value (keys sorted), as hex."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def file_hash(store: Store, key: str) -> FileEntry:
    """SHA-256 and size of one object, read as a stream."""
    digest, size = hashlib.sha256(), 0
    with store.open(key) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(sha256=digest.hexdigest(), size=size)


def write_artifact(
    uri: str,
    *,
    only: tuple[str, ...] = (),
    replace: bool = False,
    expected: Mapping[str, str] | None = None,
    **fields: Any,
) -> Artifact:
    """Hash the files that lie under `uri` (those under the prefixes `only`, if given), write `artifact.json` last.

    Until that file is there, the folder is no artifact. A finished artifact is never overwritten: the one that is
    there is returned. `replace` is for a corpus that is published again after a repair. `expected` maps keys to the
    SHA-256 they were written with; DataError is raised for a file that is no longer so.
    """
    if not replace and exists(join(uri, NAME)):
        return read_artifact(uri)
    store = open_store(uri)
    files = {
        entry.key: file_hash(store, entry.key)
        for entry in store.list()
        if entry.key != NAME and (not only or entry.key.startswith(only))
    }
    for key, sha256 in (expected or {}).items():
        if key not in files or files[key].sha256 != sha256:
            raise DataError(f"{uri}/{key}: not as it was written; delete it and clear the task that writes it")
    artifact = Artifact(files=files, created=datetime.now(UTC).isoformat(timespec="seconds"), **fields)
    artifact = artifact.model_copy(update={"hash": _hash(artifact)})
    if not write_json(join(uri, NAME), artifact.model_dump(), if_absent=not replace):
        return read_artifact(uri)
    return artifact


def _hash(artifact: Artifact) -> str:
    return content_hash(artifact.model_dump(exclude={"created", "hash", "parent_uris", "metrics"}))


def read_artifact(uri: str) -> Artifact:
    """The artifact at a URI. Raises DataError when there is none, or when its file was changed."""
    path = join(uri, NAME)
    if not exists(path):
        raise DataError(f"{uri}: no artifact here (no {NAME}); the work that makes it has not finished")
    try:
        artifact = Artifact.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError(explain(error, Artifact, path)) from None
    if artifact.hash != _hash(artifact):
        raise DataError(f"{path}: its hash does not fit its content; the file was changed after it was written")
    return artifact


def withdraw(uri: str) -> None:
    """Take `artifact.json` away, before files that it lists are replaced: until it is written again, there is none."""
    open_store(uri).delete(NAME)


@contextmanager
def unchanged(uri: str) -> Iterator[Artifact]:
    """The artifact at a URI, for as long as its files are read.

    Raises DataError at the end when it was withdrawn or replaced meanwhile: what was read may be a mixture.
    """
    artifact = read_artifact(uri)
    yield artifact
    if not exists(join(uri, NAME)) or read_artifact(uri).hash != artifact.hash:
        raise DataError(f"{uri}: was published again while it was read; run this again")


def verify_artifact(uri: str) -> Artifact:
    """Read an artifact and check every file against its hash. Raises DataError that names the first bad file."""
    artifact, store = read_artifact(uri), open_store(uri)
    for key, entry in artifact.files.items():
        if not store.exists(key):
            raise DataError(f"{join(uri, key)}: missing, though {NAME} lists it; make the artifact again")
        if file_hash(store, key) != entry:
            raise DataError(f"{join(uri, key)}: its checksum is not the one in {NAME}; make the artifact again")
    return artifact
