"""The tables that a contract's frames are filled from, by the form of the subject.

Counts are read in full; texts as a seeded sample, so that the same subject gives the same tables and a large one is
not read whole. A reader raises DataError where the subject is missing or cannot be what it should be.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from tasks.corpus.artifact import content_hash
from tasks.corpus.storage import exists, read_bytes
from tasks.errors import DataError
from tasks.gates.contract import Form

Records = list[dict[str, Any]]
SAMPLE_ROWS = 2000
SHOWN_CHARACTERS = 2000  # of a text; its measures are taken on all of it


@dataclass(frozen=True)
class Subject:
    """Views of one subject by name, and a hash of what was read."""

    identity: str
    views: dict[str, Records]


def read_subject(form: Form, uri: str) -> Subject:
    """Every view of the subject at a URI. Raises DataError when it is missing or unreadable."""
    if form == "corpus":
        from tasks.gates.corpus_views import read_corpus

        return read_corpus(uri)
    if form == "instructions":
        from tasks.gates.instruction_views import read_instructions

        return read_instructions(uri)
    if form == "tokens":
        from tasks.gates.token_views import read_tokens

        return read_tokens(uri)
    return read_metrics(uri)


def read_metrics(uri: str) -> Subject:
    """View `metrics`: one row of the numbers in a JSON file; a nested number is named `outer.inner`."""
    metrics = read_object(uri)
    return Subject(content_hash(metrics), {"metrics": [dict(flat(metrics))]})


def read_object(uri: str) -> dict[str, Any]:
    """The JSON object at a URI. Raises DataError when it is missing or something else."""
    if not exists(uri):
        raise DataError(f"{uri}: missing; the step that writes it has not finished")
    try:
        value = orjson.loads(read_bytes(uri))
    except orjson.JSONDecodeError as error:
        raise DataError(f"{uri}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{uri}: expected a JSON object, found {type(value).__name__}")
    return value


def flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Scalars of nested objects, named by their path; lists are left out."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flat(item, f"{prefix}{key}.")
        elif not isinstance(item, list):
            yield prefix + key, item


def share(part: float, whole: float) -> float | None:
    """`part` / `whole`; None where there is no whole."""
    return part / whole if whole else None


def seeded(*names: object) -> random.Random:
    """A generator that depends on nothing but the names."""
    return random.Random("\x1f".join(map(str, names)))  # noqa: S311 - a sample, not a secret


def text_measures(text: str) -> dict[str, int]:
    """What is measured on a whole text: code points, visible ones, NUL characters, code points no text may hold."""
    return {
        "characters": len(text),
        "visible_characters": sum(map(len, text.split())),
        "nul_characters": text.count("\x00"),
        "invalid_characters": len(text) - len(text.encode("utf-8", "ignore").decode("utf-8")),
    }


def shown_text(text: str) -> str:
    """The head of a text, fit for a table: no lone surrogates."""
    return text[:SHOWN_CHARACTERS].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
