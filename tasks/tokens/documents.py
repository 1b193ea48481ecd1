"""Documents of a curated corpus, and the split into train and held-out by what they are, never by where they lie."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pyarrow as pa

from tasks.corpus.artifact import unchanged
from tasks.corpus.parquet import open_parquet, read_batches
from tasks.corpus.storage import join, open_store
from tasks.errors import DataError

Split = Literal["train", "heldout"]
COLUMNS = ["doc_id", "text", "source", "language", "kind"]
OPTIONAL = ["tier"]


@dataclass(frozen=True, slots=True)
class CuratedDocument:
    """A kept document, as much of it as tokens need."""

    doc_id: str
    text: str
    source: str
    language: str
    kind: str
    tier: str = ""  # of quality, where the corpus has tiers

    @property
    def group(self) -> str:
        """What fertility and losses are broken down by: `code`, else the language."""
        return "code" if self.kind == "code" else self.language


def read_documents(corpus: str) -> Iterator[CuratedDocument]:
    """Every document of `corpus`/curated/*.parquet, in the order of file names and rows.

    Raises DataError when there is no published corpus, a shard lacks a column, or the corpus is published again
    before the last document was read.
    """
    store = open_store(corpus)
    with unchanged(corpus) as artifact:
        keys = [key for key in sorted(artifact.files) if key.startswith("curated/") and key.endswith(".parquet")]
        if not keys:
            raise DataError(f"{corpus}: no curated shard (curated/*.parquet); publish the corpus first")
        for key in keys:
            with store.open(key) as stream:
                yield from _read_file(stream, join(corpus, key))


def _read_file(stream: BinaryIO, uri: str) -> Iterator[CuratedDocument]:
    try:
        file = open_parquet(stream)
        missing = sorted(set(COLUMNS) - set(file.schema_arrow.names))
        if missing:
            raise DataError(f"{uri}: no column {', '.join(missing)}; is this a curated shard?")
        there = [*COLUMNS, *(name for name in OPTIONAL if name in file.schema_arrow.names)]
        for batch in read_batches(file, 512, columns=there):
            for row in batch.to_pylist():
                yield CuratedDocument(**{**row, "tier": row.get("tier") or ""})
    except pa.ArrowException as error:
        raise DataError(f"{uri}: not readable as Parquet: {error}") from error


def fraction(identity: str, salt: str) -> float:
    """A number in [0, 1) that depends on an identity alone: the same for ever, and unrelated between salts."""
    digest = hashlib.blake2b(f"{salt}\x1f{identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_of(identity: str, heldout_share: float) -> Split:
    """Where a document (or record) belongs. A larger share only ever adds to what is held out."""
    return "heldout" if fraction(identity, "heldout") < heldout_share else "train"
