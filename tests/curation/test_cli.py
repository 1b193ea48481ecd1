"""The shell twin, run as a user runs it."""

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tasks.corpus.shards import write_shard


def tasks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tasks", *arguments], capture_output=True, text=True, timeout=300)


def test_curate_and_why(tmp_path: Path) -> None:
    text = "The cat and the dog have been with us for a while, and that is a good thing to be glad of. " * 8
    rows: list[dict[str, object]] = [{"text": text, "id": "repeats"}, {"text": "short", "id": "短"}, {"nothing": 1}]
    write_shard(tmp_path / "in" / "pets" / "a.jsonl.gz", rows)
    done = tasks("curate", "--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "quarantined           1 documents" in done.stdout
    assert "give each record a 'text' key" in done.stdout
    assert "documents/s" in done.stderr
    report = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert (report["read"], report["dropped"], report["quarantined"]) == (3, 2, 1)
    asked = tasks("why", "--output", str(tmp_path / "out"), "短")
    assert asked.returncode == 0
    assert "DROPPED" in asked.stdout and "min_characters = 5, threshold 100" in asked.stdout


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (["curate", "--input", "/nowhere/at/all", "--output", "OUT"], 1, "/nowhere/at/all: no such folder"),
        (["curate", "--input", "IN", "--output", "OUT", "--config", "defalt"], 2, "did you mean 'default'"),
        (["why", "--output", "OUT", "abc"], 1, "no such document"),
        (["lineage", "OUT"], 1, "no artifact here"),
    ],
)
def test_wrong_use_is_one_clear_line(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    places = {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out")}
    (tmp_path / "out").mkdir()
    write_shard(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    done = tasks(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
