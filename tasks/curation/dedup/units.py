"""Units of comparison, documents or paragraphs: their columns, their total order, their band hashes."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

UNITS = pa.schema(
    [
        ("day", pa.int32()),
        ("characters", pa.int64()),  # of the document
        ("doc_id", pa.binary(16)),
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("checksum", pa.string()),
        ("row", pa.int64()),
        ("occurrence", pa.int32()),
        ("start", pa.int64()),  # of a paragraph, in code points of the normalised text; 0 for a document
        ("end", pa.int64()),
        ("shard", pa.int32()),  # position in the part
        ("identity", pa.binary(16)),  # equal exactly for equal units
        ("settled", pa.bool_()),  # a survivor of an earlier snapshot
        ("bands", pa.binary()),  # 64-bit band hashes
    ]
)


def in_order(table: pa.Table, *before: str) -> pa.Table:
    """Rows in the total order: earliest snapshot, longest document; ties by doc_id, source, given id, shard checksum,
    row, occurrence, and within a document by position. `before` are columns that count more than all of these."""
    keys = [(name, "ascending") for name in (*before, "day")] + [("characters", "descending")]
    names = ("doc_id", "source", "source_id", "checksum", "row", "occurrence", "start")
    keys += [(name, "ascending") for name in names]
    plain = table.set_column(table.schema.get_field_index("doc_id"), "doc_id", table["doc_id"].cast(pa.binary()))
    return table.take(pc.sort_indices(plain, sort_keys=keys))


def band_hashes(signatures: np.ndarray, bands: int, rows: int) -> np.ndarray:
    """One 64-bit hash of each band's values and number, shape (n, bands), from signatures of shape (n, permutations).

    Two signatures share a band exactly when datasketch's MinHashLSH would say so, but for collisions of 64 bits.
    """
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    out = np.broadcast_to(np.arange(1, bands + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15), values.shape[:2])
    for row in range(rows):
        out = (out ^ values[:, :, row]) * np.uint64(0xFF51AFD7ED558CCD)
        out = out ^ (out >> np.uint64(29))
    out = out * np.uint64(0xC4CEB9FE1A85EC53)
    return out ^ (out >> np.uint64(32))


def packed(values: np.ndarray) -> pa.Array:
    """The rows of an array, shape (n, m), as a binary column."""
    width = values.shape[1] * values.itemsize
    buffer = pa.py_buffer(np.ascontiguousarray(values).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, buffer]).cast(pa.binary())


def unpacked(column: pa.ChunkedArray, bands: int) -> np.ndarray:
    """Band hashes of a binary column, shape (n, bands), uint64."""
    return np.frombuffer(b"".join(column.to_pylist()), dtype=np.uint64).reshape(len(column), bands)


def identities(hexadecimal: pa.ChunkedArray) -> pa.Array:
    """doc_id from hex digits to 16 bytes."""
    return pa.array([bytes.fromhex(item) for item in hexadecimal.to_pylist()], pa.binary(16))
