"""Reading Parquet, without Arrow's threads.

Arrow's worker threads keep a Python stream until after the read has returned. A process that ends soon afterwards then
aborts ("terminate called without an active exception", apache/arrow#34314) or hangs (#50482), one run in four on a busy
machine. Files here are shards that Dask reads in parallel already, so one thread a file costs nothing.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq


def open_parquet(source: BinaryIO | Path) -> pq.ParquetFile:
    """A Parquet file whose footer has been read. Raises pa.ArrowException or OSError when it is damaged."""
    return pq.ParquetFile(source, pre_buffer=False)


def read_table(source: BinaryIO | Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a file. Raises what open_parquet raises."""
    with open_parquet(source) as file:
        return file.read(columns=None if columns is None else list(columns), use_threads=False)


def read_batches(
    file: pq.ParquetFile, rows: int, *, groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` rows, in order, of the given row groups (default: all)."""
    return file.iter_batches(
        rows,
        row_groups=None if groups is None else list(groups),
        columns=None if columns is None else list(columns),
        use_threads=False,
    )
