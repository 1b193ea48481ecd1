"""The same promises of a store, kept by a folder and by S3."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.corpus import machine, storage
from tasks.corpus.storage import LocalStore, Store, open_store
from tasks.corpus.store import TEMPORARY
from tasks.errors import StorageError
from tasks.settings import REPOSITORY


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path / "a folder"))
    return open_store(request.getfixturevalue("bucket"))


def test_write_read_list_delete(store: Store) -> None:
    names = ["b/2 with space.json", "b/1#hash.json", "a/中文.txt", "a/q?x=1.txt"]
    for name in names:
        store.write(name, name.encode())
    assert [entry.key for entry in store.list()] == sorted(names)
    assert [entry.key for entry in store.list("b/")] == ["b/1#hash.json", "b/2 with space.json"]
    assert store.read("a/中文.txt").decode() == "a/中文.txt"
    assert [entry.size for entry in store.list("a/")] == [len(name.encode()) for name in sorted(names)[:2]]
    store.delete("a/中文.txt")
    store.delete("a/中文.txt")
    assert not store.exists("a/中文.txt")


def test_conditional_writes(store: Store) -> None:
    assert store.write("k", b"1", if_absent=True)
    assert not store.write("k", b"2", if_absent=True)
    assert store.read("k") == b"1"
    assert not store.compare_and_swap("k", b"other", b"3")
    assert store.compare_and_swap("k", b"1", b"3")
    assert store.read("k") == b"3"
    assert not store.compare_and_swap("k", None, b"4")
    assert store.compare_and_swap("new", None, b"5")


def test_missing_key_names_the_uri(store: Store) -> None:
    with pytest.raises(StorageError, match="nothing-here"):
        store.read("nothing-here")


def test_files_and_folders(store: Store, tmp_path: Path) -> None:
    big = tmp_path / "big.bin"
    big.write_bytes(b"x" * (9 << 20))  # over boto3's multipart threshold
    store.upload(big, "deep/big.bin")
    store.download("deep/big.bin", tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == big.read_bytes()
    with store.open("deep/big.bin") as stream:
        assert stream.read(10) == b"x" * 10
    folder = storage.fetch_folder(store.sub("deep").uri, tmp_path / "fetched")
    assert [path.name for path in folder.iterdir()] == ["big.bin"]


def test_json_is_the_same_bytes_for_the_same_value(store: Store) -> None:
    storage.write_json(f"{store.uri}/x.json", {"b": 1, "a": [1, 2]})
    first = store.read("x.json")
    storage.write_json(f"{store.uri}/x.json", {"a": [1, 2], "b": 1})
    assert store.read("x.json") == first
    assert storage.read_json(f"{store.uri}/x.json") == {"a": [1, 2], "b": 1}


def test_list_reads_every_page(bucket: str) -> None:
    """10,000 objects, put into the server's own memory: by requests they would take minutes."""
    from moto.s3.models import s3_backends

    store = open_store(bucket)
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    backend = next(part["aws"] for part in s3_backends.values() if name in part["aws"].buckets)
    for number in range(10_000):
        backend.put_object(name, f"{prefix}/n/{number:05d}", b"")
    assert [entry.key for entry in store.list("n/")] == [f"n/{number:05d}" for number in range(10_000)]  # 10 pages


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/etc/passwd"])
def test_a_key_cannot_leave_a_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(StorageError, match="leaves the store"):
        LocalStore(tmp_path).read(key)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "linked").write_text("y")
    (tmp_path / "z").symlink_to(other)
    store = LocalStore(tmp_path)
    # Links that lead nowhere are listed, so that they are found unreadable and not silently missed.
    assert [entry.key for entry in store.list()] == ["a/file", "nowhere", "self", "z/linked"]
    for name in ("nowhere", "self"):
        with pytest.raises(StorageError, match=name):
            store.read(name)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(StorageError, match="not a regular file"):
        LocalStore(tmp_path).read("pipe.jsonl")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder is needed")
    with pytest.raises(StorageError, match="taken"):
        LocalStore(tmp_path).write("taken/key", b"x")
    assert [entry.key for entry in LocalStore(tmp_path).list()] == ["taken"]


def test_unknown_scheme() -> None:
    with pytest.raises(StorageError, match=r"ftp://host.*unknown scheme"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("uri", ["file://{}/a%20b/%E4%B8%AD", "file://localhost{}/a%20b/中"])
def test_file_uris_are_percent_decoded(tmp_path: Path, uri: str) -> None:
    open_store(uri.format(tmp_path)).write("k", b"1")
    assert (tmp_path / "a b" / "中" / "k").read_bytes() == b"1"


def test_a_file_uri_of_another_machine_is_refused() -> None:
    with pytest.raises(StorageError, match="names the machine 'host'"):
        open_store("file://host/folder")


def test_what_a_killed_writer_left_is_cleared_and_what_another_writes_is_not(tmp_path: Path) -> None:
    """A process dies in the middle of a write; another one's write of the same moment goes on."""
    program = "import os, sys; from tasks.corpus.local_store import LocalStore\n"
    program += "with LocalStore(sys.argv[1])._replacing('folder/key') as (path, _):\n"
    program += "    path.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=REPOSITORY, check=False)
    store = LocalStore(tmp_path)
    with store._replacing("folder/other") as (mine, _):
        assert len(list(tmp_path.rglob(f"{TEMPORARY}*"))) == 2 and list(store.list()) == []
        store.clear_unfinished()
        assert list(tmp_path.rglob(f"{TEMPORARY}*")) == [mine]


def test_a_container_of_the_same_name_clears_nothing_that_is_being_written_here(tmp_path: Path) -> None:
    """In its PID namespace nobody has this process's number."""
    program = "import sys; from tasks.corpus.local_store import LocalStore; LocalStore(sys.argv[1]).clear_unfinished()"
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this system gives an ordinary user no namespaces")
    with LocalStore(tmp_path)._replacing("folder/key") as (mine, _):
        subprocess.run([*container, sys.executable, "-c", program, str(tmp_path)], cwd=REPOSITORY, check=True)
        assert mine.exists(), "its file was deleted under its hands"


def test_what_a_machine_that_is_gone_was_writing_is_cleared_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lock = LocalStore(tmp_path), tmp_path / "folder" / f"{TEMPORARY}lock"
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with store._replacing("folder/key") as (left, _):
        monkeypatch.undo()
        lock.touch()
        for age, there in ((23, True), (25, False)):
            for path in (left, lock):
                os.utime(path, (time.time() - age * 3600,) * 2)
            store.clear_unfinished()
            assert left.exists() is there
        assert lock.exists(), "a lock is nobody's unfinished write"


def test_where_a_namespace_is_not_told_a_process_is_on_a_machine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = machine.machine()
    assert told == machine.machine() and len(told.split()) == 3
    monkeypatch.setattr(machine, "NAMESPACE", Path("/proc/self/ns/nothing"))
    machine._processes.cache_clear()
    alone = machine.machine()
    machine._processes.cache_clear()
    assert machine.machine() != alone != told, "as another process would be"
    monkeypatch.undo()
    machine._processes.cache_clear()
    assert machine.machine() == told
