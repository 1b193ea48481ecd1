"""A disk that is full, or that may only be read: one clear error, nothing spoilt, and the run goes on afterwards."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.corpus.artifact import verify_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import open_store
from tasks.curation import steps
from tasks.errors import StorageError
from tests.chaos.runs import SNAPSHOT, curate, english, temporary_files, tree


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 128 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    for shard in range(6):
        write_shard(folder / "web" / f"{shard}.jsonl.zst", [{"text": english(20 * shard + n)} for n in range(20)])
    return folder


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_space(
    landing: Path, disk: Path, tmp_path: Path, workers: None
) -> None:
    output = disk / "out"
    with pytest.raises(StorageError, match=r"group-0 failed.*\n(.*cannot be written: No space left on device)"):
        curate(landing, output)
    assert temporary_files(output) == []
    remount(disk, "size=64m")
    finished = steps.compute_signals(str(output), "group-0")["reused"]
    assert 0 < finished < 6  # what fitted was kept, and is not measured again
    curate(landing, output)
    curate(landing, tmp_path / "undisturbed")
    assert tree(output) == tree(tmp_path / "undisturbed")


@pytest.mark.slow
def test_a_disk_that_fills_up_while_verdicts_are_written(
    landing: Path, disk: Path, tmp_path: Path, workers: None
) -> None:
    output = disk / "out"
    remount(disk, "size=64m")
    steps.inventory(str(landing), str(output), SNAPSHOT)
    steps.compute_signals(str(output), "group-0")
    steps.cluster_duplicates(str(output))
    used = os.statvfs(disk)
    filled = (used.f_blocks - used.f_bfree) * used.f_bsize
    remount(disk, f"size={filled + (48 << 10)}")
    with pytest.raises(StorageError, match="No space left on device"):
        steps.write_verdicts(str(output), "group-0")
    assert temporary_files(output) == []
    remount(disk, "size=64m")
    steps.write_verdicts(str(output), "group-0")
    steps.publish(str(output))
    curate(landing, tmp_path / "undisturbed")
    assert tree(output) == tree(tmp_path / "undisturbed")


def test_a_disk_that_may_only_be_read_is_told_before_any_work(
    landing: Path, disk: Path, tmp_path: Path, workers: None
) -> None:
    remount(disk, "size=64m")
    curate(landing, disk / "out")
    before = tree(disk / "out")
    remount(disk, "ro")
    write_shard(tmp_path / "other" / "a.jsonl", [{"text": english(1)}])
    with pytest.raises(StorageError, match="cannot be written: Read-only file system"):
        steps.inventory(str(tmp_path / "other"), str(disk / "out"), SNAPSHOT)
    verify_artifact(str(disk / "out"))
    assert tree(disk / "out") == before


def test_a_write_over_the_limit_leaves_the_old_file(tmp_path: Path) -> None:
    """Without a mount: the limit on the size of a file, in a process of its own."""
    store = open_store(str(tmp_path / "out"))
    store.write("k", b"old")
    (tmp_path / "large").write_bytes(b"x" * 50_000)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        told = []
        for write in (
            lambda: store.write("k", b"x" * 50_000),
            lambda: store.compare_and_swap("k", b"old", b"x" * 50_000),
            lambda: store.upload(tmp_path / "large", "k"),
        ):
            try:
                write()
            except StorageError as error:
                told.append(str(error))
        os.write(writing, "\n".join(told).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as stream:
        assert stream.read().splitlines() == [f"{store.uri}/k: cannot be written: File too large"] * 3
    assert store.read("k") == b"old"
    assert temporary_files(tmp_path) == []
