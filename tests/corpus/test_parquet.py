import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

READ = """
import os, sys
import pyarrow.parquet
from tasks.corpus.parquet import open_parquet, read_batches, read_table

before = set(os.listdir("/proc/self/task"))
with open(sys.argv[1], "rb") as stream:
    {read}
print(sorted(set(os.listdir("/proc/self/task")) - before))
"""


@pytest.mark.parametrize(
    "read",
    [
        "assert read_table(stream).num_rows == 3",
        "assert read_table(stream, ['b']).column_names == ['b']",
        "assert [batch.num_rows for batch in read_batches(open_parquet(stream), 2)] == [2, 1]",
        "assert sum(batch.num_rows for batch in read_batches(open_parquet(stream), 9, groups=[0], columns=['a'])) == 3",
    ],
)
def test_reading_leaves_no_thread_that_could_outlive_the_interpreter(tmp_path: Path, read: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}), path)
    program = [sys.executable, "-c", READ.format(read=read), str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_no_module_reads_parquet_another_way() -> None:
    root = Path(__file__).parents[2]
    files = [path for folder in ("tasks", "plugins", "dags") for path in (root / folder).rglob("*.py")]
    reading = re.compile(r"pq\.(read_table|ParquetFile\()|\.iter_batches\(|\.read_parquet\(")
    assert [path.name for path in files if reading.search(path.read_text())] == ["parquet.py"]
