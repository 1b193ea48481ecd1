"""Lineage: from a model back to the shards it was made of, a walk over `artifact.json` files."""

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.errors import DataError, StorageError


@dataclass(frozen=True)
class Ancestor:
    """One artifact on the way back. `depth` is 0 for the model asked about."""

    depth: int
    uri: str
    artifact: Artifact | None
    problem: str | None = None


def walk(uri: str) -> Iterator[Ancestor]:
    """The artifact at `uri`, then its parents, each once. A parent that is gone or was replaced is said so.

    Raises DataError when there is no artifact at `uri` itself.
    """
    seen: set[str] = set()
    queue: list[tuple[int, str, str | None]] = [(0, uri, None)]
    while queue:
        depth, place, expected = queue.pop(0)
        if place in seen:
            continue
        seen.add(place)
        try:
            artifact = read_artifact(place)
        except (DataError, StorageError) as error:
            if depth == 0:
                raise
            yield Ancestor(depth, place, None, str(error))
            continue
        problem = None
        if expected and artifact.hash != expected:
            problem = f"it was made from version {expected[:12]}, which has been replaced since"
        yield Ancestor(depth, place, artifact, problem)
        for parent, parent_uri in zip(artifact.parents, artifact.parent_uris, strict=True):
            queue.append((depth + 1, parent_uri, parent))
