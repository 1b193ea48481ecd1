"""Token shards: documents as one stream of ids, cut into sequences without padding, read memory-mapped.

A split's stream is every document's tokens followed by the end-of-text token. Sequence i is the stream's i-th slice of
`sequence_length`; only the last may be shorter. So no token is lost, none is counted twice, and a long document runs
through as many sequences as it needs. Where documents begin is read off the end-of-text tokens, which text can never
contain (see `plain_encoder`).

    tokens.json                            counts, shards, which tokenizer
    <split>-00000.npy                      ids, 1-D, little-endian uint16 (uint32 from 65,536 tokens on)
    <split>-00000.documents.parquet        doc_id, source, language, kind, tier, start (in the stream), tokens, bytes
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.corpus.parquet import read_table
from tasks.corpus.storage import to_json
from tasks.errors import ConservationError, DataError
from tasks.settings import StrictModel
from tasks.tokens.documents import CuratedDocument, Split, split_of

SCHEMA_VERSION = 1
SHARD_TOKENS = 2**25
SPLITS: tuple[Split, ...] = ("train", "heldout")
DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("source", pa.string()),
        ("language", pa.string()),
        ("kind", pa.string()),
        ("tier", pa.string()),
        ("start", pa.int64()),
        ("tokens", pa.int64()),
        ("bytes", pa.int64()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


class ShardEntry(StrictModel):
    """One shard: its ids and the documents that begin in it."""

    file: str
    documents_file: str
    tokens: int
    documents: int


class SplitEntry(StrictModel):
    """Totals of a split. `tokens` includes one end-of-text token a document; `bytes` is UTF-8 text."""

    documents: int
    tokens: int
    bytes: int
    sequences: int
    shards: list[ShardEntry]


class TokenIndex(StrictModel):
    """What tokens.json holds."""

    schema_version: Literal[1] = 1
    tokenizer: str  # SHA-256 of tokenizer.json, for a token count means nothing without it
    vocab_size: int
    sequence_length: int
    end_of_text: int
    dtype: Literal["<u2", "<u4"]
    splits: dict[Split, SplitEntry]


class _SplitWriter:
    """Collects one split's stream and writes a shard whenever a whole number of sequences fills it."""

    def __init__(self, folder: Path, split: Split, length: int, dtype: str, shard_tokens: int) -> None:
        self.folder, self.split, self.length, self.dtype = folder, split, length, dtype
        self.capacity = max(1, shard_tokens // length) * length
        self.buffer: list[np.ndarray] = []
        self.buffered = self.written = self.documents = self.bytes = 0
        self.rows: list[dict[str, Any]] = []
        self.shards: list[ShardEntry] = []

    def add(self, document: CuratedDocument, ids: np.ndarray) -> None:
        size = len(document.text.encode())
        row = {name: getattr(document, name) for name in ("doc_id", "source", "language", "kind", "tier")}
        self.rows.append({**row, "start": self.written + self.buffered, "tokens": len(ids), "bytes": size})
        self.documents += 1
        self.bytes += size
        self.buffer.append(ids.astype(self.dtype))
        self.buffered += len(ids)
        while self.buffered >= self.capacity:
            self._flush(self.capacity)

    def _flush(self, count: int) -> None:
        stream = np.concatenate(self.buffer)
        here, rest = stream[:count], stream[count:]
        end = self.written + count
        begun = [row for row in self.rows if row["start"] < end]
        self.rows = self.rows[len(begun) :]
        name = f"{self.split}-{len(self.shards):05d}"
        np.save(self.folder / f"{name}.npy", here)
        pq.write_table(
            pa.Table.from_pylist(begun, DOCUMENTS), self.folder / f"{name}.documents.parquet", compression="zstd"
        )
        entry = ShardEntry(
            file=f"{name}.npy", documents_file=f"{name}.documents.parquet", tokens=count, documents=len(begun)
        )
        self.shards.append(entry)
        self.buffer, self.buffered, self.written = [rest], len(rest), end

    def close(self) -> SplitEntry:
        if self.buffered:
            self._flush(self.buffered)
        entry = SplitEntry(
            documents=self.documents,
            tokens=self.written,
            bytes=self.bytes,
            sequences=-(-self.written // self.length),
            shards=self.shards,
        )
        if entry.documents != sum(shard.documents for shard in self.shards):
            raise ConservationError(f"{self.folder}: {self.split}: {entry.documents} documents went in, other came out")
        return entry


def write_token_shards(
    folder: Path,
    documents: Iterable[CuratedDocument],
    tokenizer: Any,
    *,
    tokenizer_hash: str,
    sequence_length: int,
    heldout_share: float,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenIndex:
    """Encode documents and write both splits' shards and tokens.json under `folder`.

    `tokenizer` is a fast tokenizer of transformers. Raises DataError when a split is left without a document.
    """
    from tasks.tokens.tokenizer import plain_encoder

    folder.mkdir(parents=True, exist_ok=True)
    encoder, end = plain_encoder(tokenizer), tokenizer.eos_token_id
    dtype: Literal["<u2", "<u4"] = "<u2" if len(tokenizer) <= 2**16 else "<u4"
    writers = {split: _SplitWriter(folder, split, sequence_length, dtype, shard_tokens) for split in SPLITS}
    for batch in _batches(documents, 256):
        encoded = encoder.encode_batch_fast([document.text for document in batch], add_special_tokens=False)
        for document, encoding in zip(batch, encoded, strict=True):
            ids = np.array([*encoding.ids, end], dtype=np.int64)
            writers[split_of(document.doc_id, heldout_share)].add(document, ids)
    for split, writer in writers.items():
        if not writer.documents:
            raise DataError(f"no document falls into the {split} split; the corpus is too small, add documents")
    index = TokenIndex(
        tokenizer=tokenizer_hash,
        vocab_size=len(tokenizer),
        sequence_length=sequence_length,
        end_of_text=end,
        dtype=dtype,
        splits={split: writer.close() for split, writer in writers.items()},
    )
    (folder / "tokens.json").write_bytes(to_json(index.model_dump()))
    return index


def _batches(items: Iterable[CuratedDocument], size: int) -> Iterator[list[CuratedDocument]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class TokenShards:
    """One split of a folder of token shards, memory-mapped. Sequences are read as they are asked for."""

    def __init__(self, folder: Path, split: Split) -> None:
        self.folder, self.split = folder, split
        self.index = read_index(folder)
        self.entry = self.index.splits[split]
        self.length = self.index.sequence_length
        self._maps = [np.load(folder / shard.file, mmap_mode="r") for shard in self.entry.shards]
        self._starts = np.cumsum([0, *(shard.tokens for shard in self.entry.shards)])
        for shard, ids in zip(self.entry.shards, self._maps, strict=True):
            if ids.shape != (shard.tokens,):
                raise DataError(f"{folder / shard.file}: shape {ids.shape}, but tokens.json says {shard.tokens} tokens")

    def __len__(self) -> int:
        return self.entry.sequences

    def sequence(self, i: int) -> np.ndarray:
        """Ids of sequence i, int64, of `length` tokens; the last one of a split may be shorter."""
        start = i * self.length
        return self.read(start, min(start + self.length, self.entry.tokens))

    def read(self, start: int, end: int) -> np.ndarray:
        """Ids [start, end) of the split's stream, int64."""
        parts = []
        while start < end:
            shard = int(np.searchsorted(self._starts, start, side="right")) - 1
            stop = min(end, int(self._starts[shard + 1]))
            parts.append(self._maps[shard][start - self._starts[shard] : stop - self._starts[shard]])
            start = stop
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def documents(self) -> pa.Table:
        """The documents of the split in stream order."""
        return pa.concat_tables(read_table(self.folder / shard.documents_file) for shard in self.entry.shards)

    def counts(self) -> np.ndarray:
        """How often each token occurs in the split: (vocab_size,) int64."""
        total = np.zeros(self.index.vocab_size, np.int64)
        for ids in self._maps:
            for start in range(0, len(ids), 1 << 22):
                total += np.bincount(ids[start : start + (1 << 22)], minlength=len(total))
        return total


def read_index(folder: Path) -> TokenIndex:
    """tokens.json of a folder. Raises DataError when it is missing."""
    path = folder / "tokens.json"
    if not path.is_file():
        raise DataError(f"{path}: missing; expected the tokens folder of a tokenizer artifact")
    return TokenIndex.model_validate(orjson.loads(path.read_bytes()))
