"""Very many very small documents: all counted, none kept, none lost."""

from pathlib import Path

import pytest

from tasks.corpus.shards import write_shard
from tests.chaos.runs import curate, tables

MANY = 100_000


@pytest.mark.slow
def test_a_hundred_thousand_documents_of_three_characters(tmp_path: Path, workers: None) -> None:
    write_shard(tmp_path / "in" / "w" / "a.jsonl.zst", [{"text": f"{number % 1000:03d}"} for number in range(MANY)])
    published = curate(tmp_path / "in", tmp_path / "out")
    assert (published["read"], published["dropped"], published["bytes"]["read"]) == (MANY, MANY, 3 * MANY)
    (verdicts,) = tables(tmp_path / "out", "verdicts").values()
    assert verdicts["row"].to_pylist() == list(range(MANY))
    assert all(verdicts["reasons"].to_pylist())
