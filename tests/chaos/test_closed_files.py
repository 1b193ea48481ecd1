"""Files and folders that may not be read: found, named and counted, never passed over."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.manifest import take_inventory
from tasks.corpus.shards import Row, read_shard, write_shard
from tasks.corpus.storage import open_store
from tasks.errors import StorageError

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may enter, as pytest's own may not be."""
    made = Path(tempfile.mkdtemp(prefix="athanor-test-"))
    made.chmod(0o755)
    yield made
    for path in made.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(made)


def without_privileges(function: Callable[[], Any]) -> Any:
    """What the function returns in a process of a user whom permissions bind; root reads everything."""
    if os.geteuid() != 0:
        return function()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            answer = json.dumps(function())
        except StorageError as error:
            answer = json.dumps(str(error))
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as stream:
        return json.loads(stream.read())


def read_all(landing: Path) -> dict[str, list[str]]:
    """Shard → what came of each of its rows, and of the rest."""
    store = open_store(str(landing))
    shards = take_inventory(str(landing), "2026-11-30", {}, 1).shards
    return {
        shard.key: [
            "row" if isinstance(item, Row) else f"{item.reason}: {item.detail}" for item in read_shard(store, shard.key)
        ]
        for shard in shards
    }


def test_a_closed_file_and_a_closed_folder_are_told_and_spare_the_others(folder: Path) -> None:
    for name in ("open/a.jsonl", "open/closed.jsonl", "closed/b.jsonl"):
        write_shard(folder / name, [{"text": "x"}])
    (folder / "open" / "closed.jsonl").chmod(0)
    (folder / "closed").chmod(0)
    found = without_privileges(lambda: read_all(folder))
    assert set(found) == {"open/a.jsonl", "open/closed.jsonl", "closed"}
    assert found["open/a.jsonl"] == ["row"]
    for name in ("open/closed.jsonl", "closed"):
        (told,) = found[name]
        assert told.startswith("unreadable_file: ") and name in told


def test_a_closed_landing_zone_is_no_empty_one(folder: Path) -> None:
    write_shard(folder / "in" / "a.jsonl", [{"text": "x"}])
    (folder / "in").chmod(0)
    assert "cannot be listed: Permission denied" in without_privileges(lambda: read_all(folder / "in"))


def test_an_output_that_may_not_be_written_is_one_clear_error(folder: Path) -> None:
    (folder / "out").mkdir(mode=0o555)

    def write() -> None:
        open_store(str(folder / "out")).write("manifest.json", b"{}")

    assert "out/manifest.json: cannot be written: Permission denied" in without_privileges(write)
    assert list((folder / "out").iterdir()) == []
