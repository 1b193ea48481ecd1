"""The passages sidecar: every paragraph and sentence of prose that deduplication may compare, one row each.

It is written in the same pass as the signals, so that no later step reads text in order to find a repetition.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from tasks.curation.config import CurationConfig
from tasks.curation.dedup.passages import Passages, find_passages
from tasks.curation.dedup.shingles import signatures
from tasks.curation.dedup.units import packed
from tasks.curation.signals import Measured
from tasks.curation.text.code_points import code_points

SCHEMA_VERSION = 1
CODE_VERSION = 1  # raise when other passages may be found, or their hashes change
PLACE = [("row", pa.int64()), ("start", pa.int32()), ("end", pa.int32())]  # in code points of the normalised text
SCHEMAS = {
    # Of a signature's values the lower half: bands of them meet by chance no more often than hashes of 64 bits do.
    "paragraphs": pa.schema([*PLACE, ("identity", pa.binary(16)), ("signature", pa.binary())]),
    "sentences": pa.schema([*PLACE, ("hash", pa.uint64())]),
}
VALUE = np.uint16  # of a stored signature
NEVER = np.iinfo(np.int32).max


def comparable(kind: str | None, language: str | None, config: CurationConfig) -> bool:
    """Whether a document's passages are compared: those of prose in a language that has rules."""
    return kind == "prose" and config.rule_set(language or "", kind) is not None


def passage_tables(rows: Iterable[tuple[int, Measured]], config: CurationConfig) -> dict[str, pa.Table]:
    """The passages of measured documents, given with their row numbers; level → table."""
    wanted = config.measuring_passages()
    least = [wanted[level]["min_tokens"] if level in wanted else NEVER for level in SCHEMAS]
    level = config.dedup.model_copy(update={"permutations": wanted.get("paragraphs", {}).get("permutations", 8)})
    numbers: list[int] = []
    found: list[Passages] = []
    sketches = [np.empty((0, level.permutations), np.uint32)]
    for row, measured in rows:
        if comparable(measured.kind, measured.language, config):
            passages = find_passages(measured.text, code_points(measured.text), *least)
            numbers.append(row)
            found.append(passages)
            sketches.append(signatures(measured.text, passages.paragraphs, level))
    identities = np.concatenate([np.empty((0, 2), np.uint64), *(item.identities for item in found)])
    sketched = packed(np.concatenate(sketches).astype(VALUE))
    hashes = np.concatenate([np.empty(0, np.uint64), *(item.hashes for item in found)])
    columns = {
        "paragraphs": [*_places(numbers, [item.paragraphs for item in found]), packed(identities), sketched],
        "sentences": [*_places(numbers, [item.sentences for item in found]), pa.array(hashes)],
    }
    names = {level: schema.names for level, schema in SCHEMAS.items()}
    return {level: pa.table(columns[level], names[level]).cast(SCHEMAS[level]) for level in wanted}


def _places(rows: list[int], places: list[np.ndarray]) -> list[pa.Array]:
    every = np.concatenate([np.empty((0, 2), np.int32), *places])
    numbers = np.repeat(np.array(rows, dtype=np.int64), [len(own) for own in places])
    return [pa.array(numbers), pa.array(every[:, 0]), pa.array(every[:, 1])]
