"""A store that is a folder of this machine."""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import psutil

from tasks.corpus.machine import machine
from tasks.corpus.store import TEMPORARY, Entry
from tasks.errors import StorageError, UnreadableError

# A file that is being written names the machine and the process that writes it.
UNFINISHED = re.compile(re.escape(TEMPORARY) + r"(?P<machine>[0-9a-f]{16})-(?P<process>\d+)-\w+")
FORGOTTEN = 86_400.0  # seconds after which one that nobody has written to has lost its writer, on whatever machine
_GONE = (FileNotFoundError, NotADirectoryError)  # since it was listed, or never there


def _here() -> str:
    """This machine in names of files."""
    return hashlib.blake2b(machine().encode(), digest_size=8).hexdigest()


def _is_left(path: Path) -> bool:
    """Whether a file's writer is gone. Another machine's processes cannot be looked for: there its age has to tell."""
    named = UNFINISHED.fullmatch(path.name)
    if named is None:
        return False
    if named["machine"] == _here():
        return not psutil.pid_exists(int(named["process"]))
    try:
        return time.time() - path.stat().st_mtime > FORGOTTEN
    except FileNotFoundError:
        return False


class LocalStore:
    """A folder of this machine."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.uri = str(self.root)

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in PurePosixPath(key).parts:
            raise StorageError(f"{self.uri}: key {key!r} leaves the store; expected a relative path without '..'")
        return self.root / key

    def list(self, prefix: str = "") -> Iterator[Entry]:
        base = self._path(prefix.rsplit("/", 1)[0]) if "/" in prefix else self.root
        found = []
        closed: list[OSError] = []
        seen: set[tuple[int, int]] = set()  # folders, so that a loop of links ends
        for folder, folders, files in os.walk(base, followlinks=True, onerror=closed.append):
            folders.sort()  # of two links to one folder, always the same one is followed
            try:
                status = Path(folder).stat()
            except FileNotFoundError:  # since it was listed
                folders.clear()
                continue
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            found += [self._entry(Path(folder) / name) for name in files if not name.startswith(TEMPORARY)]
        found += [self._closed(error) for error in closed if not isinstance(error, _GONE)]
        entries = [entry for entry in found if entry and entry.key.startswith(prefix)]
        yield from sorted(entries, key=lambda entry: entry.key)

    def _entry(self, path: Path) -> Entry | None:
        """The entry of a file; a link that leads nowhere is listed, so that it is missed; a file gone since is not."""
        try:
            status = path.stat()
        except OSError:
            if not path.is_symlink():
                return None
            status = path.lstat()
        # A name that is no UTF-8 cannot be a key; escaped, it is listed and found unreadable.
        key = os.fsencode(path.relative_to(self.root).as_posix()).decode("utf-8", "backslashreplace")
        return Entry(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    def _closed(self, error: OSError) -> Entry | None:
        """A folder that may not be listed stands for what it holds, so that it is found unreadable and not missed."""
        if Path(error.filename) == self.root:
            raise StorageError(f"{self.uri}: cannot be listed: {error.strerror}") from error
        return self._entry(Path(error.filename))

    def size(self, key: str) -> int | None:
        with self._explained(key, "be looked at"):
            path = self._path(key)
            return path.stat().st_size if path.is_file() else None

    def exists(self, key: str) -> bool:
        with self._explained(key, "be looked at"):
            return self._path(key).is_file()

    def read(self, key: str) -> bytes:
        with self.open(key) as stream, self._explained(key, "be read"):
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
                raise UnreadableError(f"{self.uri}/{key}: cannot be read: not a regular file")
            return path.open("rb")
        except OSError as error:
            raise UnreadableError(f"{self.uri}/{key}: cannot be read: {error.strerror}") from error

    @contextmanager
    def _explained(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(f"{self.uri}/{key}: cannot {what}: {error.strerror or error}") from error

    @contextmanager
    def _replacing(self, key: str) -> Iterator[tuple[Path, Path]]:
        """A temporary file beside the target, which is gone afterwards unless it was moved there."""
        target = self._path(key)
        with self._explained(key, "be written"):
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f"{TEMPORARY}{_here()}-{os.getpid()}-", dir=target.parent)
            os.close(handle)
            temporary = Path(name)
            try:
                yield temporary, target
            finally:
                temporary.unlink(missing_ok=True)

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        with self._replacing(key) as (temporary, target):
            temporary.write_bytes(data)
            return _commit(temporary, target, if_absent)

    def upload(self, path: Path, key: str) -> None:
        with self._replacing(key) as (temporary, target):
            shutil.copyfile(path, temporary)
            _commit(temporary, target, if_absent=False)

    def download(self, key: str, path: Path) -> None:
        with self._explained(key, f"be copied to {path}"):
            shutil.copyfile(self._path(key), path)

    def delete(self, key: str) -> None:
        with self._explained(key, "be deleted"):
            self._path(key).unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        with self._explained("", "be cleared of unfinished writes"):
            for path in self.root.rglob(f"{TEMPORARY}*"):
                if _is_left(path):
                    path.unlink(missing_ok=True)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if expected is None:
            return self.write(key, new, if_absent=True)
        lock = self._path(key).with_name(TEMPORARY + "lock")
        with self._explained(key, "be written"):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with lock.open("wb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                if not self.exists(key) or self.read(key) != expected:
                    return False
                return self.write(key, new)

    def sub(self, prefix: str) -> "LocalStore":
        return LocalStore(self._path(prefix))

    def local(self, key: str = "") -> Path | None:
        return self._path(key) if key else self.root


def _commit(temporary: Path, target: Path, if_absent: bool) -> bool:
    """Give the file its name, content first: after a power cut there is the old file or the new one."""
    temporary.chmod(0o644)
    to_disk(temporary)
    if not if_absent:
        temporary.replace(target)
    else:
        try:
            os.link(temporary, target)  # fails when the target exists: the local form of a conditional put
        except FileExistsError:
            return False
    to_disk(target.parent)
    return True


def to_disk(path: Path) -> None:
    """Make a file, or a folder's entries, last through a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
