"""A store that is a folder of this machine."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from tasks.corpus.store import TEMPORARY, Entry
from tasks.errors import StorageError


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
        seen: set[tuple[int, int]] = set()  # folders, so that a loop of links ends
        for folder, folders, files in os.walk(base, followlinks=True):
            folders.sort()  # of two links to one folder, always the same one is followed
            status = Path(folder).stat()
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            for name in files:
                path = Path(folder) / name
                # A name that is no UTF-8 cannot be a key; escaped, it is listed and found unreadable.
                key = os.fsencode(path.relative_to(self.root).as_posix()).decode("utf-8", "backslashreplace")
                if not name.startswith(TEMPORARY) and key.startswith(prefix):
                    found.append(_entry(path, key))
        yield from sorted((entry for entry in found if entry), key=lambda entry: entry.key)

    def size(self, key: str) -> int | None:
        path = self._path(key)
        return path.stat().st_size if path.is_file() else None

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def read(self, key: str) -> bytes:
        with self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
                raise StorageError(f"{self.uri}/{key}: cannot be read: not a regular file")
            return path.open("rb")
        except OSError as error:
            raise StorageError(f"{self.uri}/{key}: cannot be read: {error.strerror}") from error

    @contextmanager
    def _replacing(self, key: str) -> Iterator[tuple[Path, Path]]:
        target = self._path(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
            os.close(handle)
            temporary = Path(name)
            try:
                yield temporary, target
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{target}: cannot be written: {error.strerror or error}") from error

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        with self._replacing(key) as (temporary, target):
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            return _commit(temporary, target, if_absent)

    def upload(self, path: Path, key: str) -> None:
        with self._replacing(key) as (temporary, target):
            shutil.copyfile(path, temporary)
            _commit(temporary, target, if_absent=False)

    def download(self, key: str, path: Path) -> None:
        try:
            shutil.copyfile(self._path(key), path)
        except OSError as error:
            raise StorageError(f"{self.uri}/{key}: cannot be copied to {path}: {error.strerror}") from error

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if expected is None:
            return self.write(key, new, if_absent=True)
        self.root.mkdir(parents=True, exist_ok=True)
        lock = self._path(key).with_name(TEMPORARY + "lock")
        with lock.open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if not self.exists(key) or self.read(key) != expected:
                return False
            return self.write(key, new)

    def sub(self, prefix: str) -> "LocalStore":
        return LocalStore(self._path(prefix))

    def local(self, key: str = "") -> Path | None:
        return self._path(key) if key else self.root


def _entry(path: Path, key: str) -> Entry | None:
    """The entry of a file; a link that leads nowhere is listed, so that it is missed; a file gone since is not."""
    try:
        status = path.stat()
    except OSError:
        if not path.is_symlink():
            return None
        status = path.lstat()
    return Entry(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _commit(temporary: Path, target: Path, if_absent: bool) -> bool:
    temporary.chmod(0o644)
    if not if_absent:
        temporary.replace(target)
        return True
    try:
        os.link(temporary, target)  # fails when the target exists: the local form of a conditional put
    except FileExistsError:
        return False
    return True
