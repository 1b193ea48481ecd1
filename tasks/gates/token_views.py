"""Tables of token shards: their totals, and a sample of sequences.

The format is the one that `tasks.tokens.shards` describes: `tokens/tokens.json`, ids in `<split>-00000.npy`, and where
documents begin in `<split>-00000.documents.parquet`.
"""

from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.corpus.parquet import read_table
from tasks.corpus.storage import Store, join, open_store
from tasks.errors import DataError
from tasks.gates.frames import Records, Subject, read_object, seeded, share

FOLDER = "tokens"
SAMPLE_SHARDS = 8  # of each split
SAMPLE_SEQUENCES = 64  # of each shard


def read_tokens(uri: str) -> Subject:
    """Views `summary` (one row) and `sequences` (a seeded sample of both splits) of a tokenizer artifact.

    Raises DataError when there is no finished artifact, or its token shards cannot be read.
    """
    artifact = read_artifact(uri)
    index = read_object(join(uri, FOLDER, "tokens.json"))
    store = open_store(join(uri, FOLDER))
    try:
        sizes = {entry.key: entry.size for entry in store.list()}
        summary = summary_row(artifact, index, sizes)
        sequences = [
            row for split in sorted(index["splits"]) for row in _sample(store, index, split, sizes, artifact.hash)
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"{store.uri}/tokens.json: not as expected ({error}); make the tokens again") from None
    return Subject(artifact.hash, {"summary": [summary], "sequences": sequences})


def summary_row(artifact: Artifact, index: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """Totals of tokens.json, and where they do not fit the shards or the tokenizer beside them."""
    row: dict[str, Any] = {name: index[name] for name in ("vocab_size", "sequence_length", "end_of_text")}
    entry = artifact.files.get("tokenizer.json")
    row["tokenizer_matches"] = entry is not None and entry.sha256 == index["tokenizer"]
    row["files_missing"] = row["tokens_not_in_shards"] = row["documents_not_in_shards"] = row["size_difference"] = 0
    width = np.dtype(index["dtype"]).itemsize
    for split, totals in index["splits"].items():
        shards = totals["shards"]
        row |= {f"{split}_{name}": totals[name] for name in ("documents", "tokens", "bytes", "sequences")}
        row["tokens_not_in_shards"] += abs(totals["tokens"] - sum(shard["tokens"] for shard in shards))
        row["documents_not_in_shards"] += abs(totals["documents"] - sum(shard["documents"] for shard in shards))
        for shard in shards:
            row["files_missing"] += (shard["file"] not in sizes) + (shard["documents_file"] not in sizes)
            if shard["file"] in sizes:
                # The header of a .npy file of one dimension takes 128 bytes.
                row["size_difference"] += abs(sizes[shard["file"]] - 128 - width * shard["tokens"])
    tokens = row.get("train_tokens", 0) + row.get("heldout_tokens", 0)
    row["heldout_share"] = share(row.get("heldout_tokens", 0), tokens)
    row["bytes_per_token"] = share(row.get("train_bytes", 0), row.get("train_tokens", 0))
    return row


def _sample(store: Store, index: dict[str, Any], split: str, sizes: dict[str, int], seed: str) -> Records:
    """Sequences of a split, drawn from up to SAMPLE_SHARDS shards; missing files are left to the summary."""
    begin, chosen = 0, []
    for shard in index["splits"][split]["shards"]:
        if shard["file"] in sizes and shard["documents_file"] in sizes:
            chosen.append((begin, shard))
        begin += shard["tokens"]
    draw = seeded(seed, split, "shards")
    chosen = sorted(draw.sample(chosen, min(SAMPLE_SHARDS, len(chosen))), key=lambda item: item[0])
    last = index["splits"][split]["sequences"] - 1
    return [
        row for begin, shard in chosen for row in _sequences(store, index, split, begin, shard, last, (seed, split))
    ]


def _sequences(
    store: Store,
    index: dict[str, Any],
    split: str,
    begin: int,
    shard: dict[str, Any],
    last: int,
    seed: tuple[str, str],
) -> Records:
    length, end = index["sequence_length"], index["end_of_text"]
    count = -(-shard["tokens"] // length)
    drawn = sorted(seeded(*seed, shard["file"]).sample(range(count), min(SAMPLE_SEQUENCES, count)))
    starts = _starts(store, shard["documents_file"]) - begin
    rows = []
    with store.open(shard["file"]) as stream:
        dtype, offset = _header(stream, join(store.uri, shard["file"]))
        for number in drawn:
            first = number * length
            stream.seek(offset + first * dtype.itemsize)
            ids = np.frombuffer(stream.read(length * dtype.itemsize), dtype).astype(np.int64)
            # A document begins after an end-of-text token and nowhere else: positions and attention restart there.
            after_end = np.flatnonzero(ids[:-1] == end) + 1
            begun = starts[(starts > first) & (starts < first + len(ids))] - first
            rows.append(
                {
                    "split": split,
                    "file": shard["file"],
                    "sequence": begin // length + number,
                    "tokens": len(ids),
                    "whole": len(ids) == length or begin // length + number == last,
                    "largest_id": int(ids.max(initial=0)),
                    "outside_vocabulary": int(((ids < 0) | (ids >= index["vocab_size"])).sum()),
                    "distinct_ids": len(np.unique(ids)),
                    "documents": len(after_end) + 1,
                    "boundary_errors": len(np.setxor1d(after_end, begun)),
                    "head": " ".join(map(str, ids[:24])),
                }
            )
    return rows


def _header(stream: BinaryIO, where: str) -> tuple[np.dtype, int]:
    """Type of a .npy file's values, and where they begin."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        _, _, dtype = read(stream)
    except ValueError as error:
        raise DataError(f"{where}: not a .npy file: {error}; make the tokens again") from None
    return dtype, stream.tell()


def _starts(store: Store, key: str) -> np.ndarray:
    with store.open(key) as stream:
        try:
            return read_table(stream, ["start"])["start"].to_numpy()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{join(store.uri, key)}: not readable as Parquet: {error}") from None
