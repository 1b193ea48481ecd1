"""One small interface over a local folder and S3, used by everything that reads or writes.

A store is a root URI (a folder, or `s3://bucket/prefix`); keys are POSIX paths below it. Every write is atomic: a
temporary name and a rename locally, a single put or a multipart completion on S3. So a reader sees the old object,
or the new one, or none; never half of one.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import orjson

from tasks.errors import StorageError

TEMPORARY = ".tmp-"  # prefix of names that are being written; never listed


@dataclass(frozen=True)
class Entry:
    """One object of a store: key below the root, size in bytes, time of last change (UTC)."""

    key: str
    size: int
    modified: datetime


class Store(Protocol):
    """What a store can do. A missing key raises StorageError."""

    uri: str

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Entries whose key begins with `prefix`, sorted by key."""
        ...

    def exists(self, key: str) -> bool: ...

    def read(self, key: str) -> bytes: ...

    def open(self, key: str) -> BinaryIO:
        """A stream to read from; the caller closes it."""
        ...

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write atomically. With `if_absent`, False (and nothing changed) when the key was there already."""
        ...

    def upload(self, path: Path, key: str) -> None:
        """Copy a local file in, atomically."""
        ...

    def download(self, key: str, path: Path) -> None: ...

    def delete(self, key: str) -> None:
        """Delete; a missing key is not an error."""
        ...

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        """Replace the object only if its content is still `expected` (None: absent)."""
        ...

    def sub(self, prefix: str) -> "Store": ...

    def local(self, key: str = "") -> Path | None:
        """The real path of a key when the store is a folder of this machine, else None."""
        ...


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
        base = self.root
        if "/" in prefix:
            base = self._path(prefix.rsplit("/", 1)[0])
        found = []
        # os.walk does not follow directory links, so a loop of links cannot trap it.
        for folder, folders, files in os.walk(base):
            folders.sort()
            for name in files:
                path = Path(folder) / name
                key = path.relative_to(self.root).as_posix()
                if name.startswith(TEMPORARY) or not key.startswith(prefix):
                    continue
                try:
                    status = path.stat()
                except FileNotFoundError:  # removed since, or a link to nowhere
                    continue
                found.append(Entry(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC)))
        yield from sorted(found, key=lambda entry: entry.key)

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def read(self, key: str) -> bytes:
        with self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except OSError as error:
            raise StorageError(f"{join(self.uri, key)}: cannot be read: {error.strerror}") from error

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
            raise StorageError(f"{join(self.uri, key)}: cannot be copied to {path}: {error.strerror}") from error

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


class S3Store:
    """A bucket and prefix of any S3-compatible service, through boto3's standard credential chain."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self.bucket = parts.netloc
        # Not parts.path: a key may hold '?' and '#'.
        self.prefix = uri.removeprefix(f"s3://{self.bucket}").strip("/")
        self.uri = f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def list(self, prefix: str = "") -> Iterator[Entry]:
        root = f"{self.prefix}/" if self.prefix else ""
        pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=root + prefix)
        with _explained(self.uri):
            found = [
                Entry(item["Key"].removeprefix(root), item["Size"], item["LastModified"])
                for page in pages
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ]
        yield from sorted(found, key=lambda entry: entry.key)

    def exists(self, key: str) -> bool:
        with _explained(join(self.uri, key)):
            return self._tag(key) is not None

    def _tag(self, key: str) -> str | None:
        from botocore.exceptions import ClientError

        try:
            return _s3().head_object(Bucket=self.bucket, Key=self._key(key))["ETag"]
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise

    def read(self, key: str) -> bytes:
        with _explained(join(self.uri, key)), self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        from smart_open import open as smart_open

        with _explained(join(self.uri, key)):
            # smart_open asks for the rest of the object again when a connection drops in mid-body.
            return smart_open(
                f"s3://{self.bucket}/{self._key(key)}",
                "rb",
                compression="disable",
                transport_params={"client": _s3(), "defer_seek": True},
            )

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with _explained(join(self.uri, key)):
            try:
                _s3().put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)
            except ClientError as error:
                if if_absent and _status(error) in (409, 412):
                    return False
                raise
        return True

    def upload(self, path: Path, key: str) -> None:
        with _explained(join(self.uri, key)):
            _s3().upload_file(str(path), self.bucket, self._key(key))

    def download(self, key: str, path: Path) -> None:
        with _explained(join(self.uri, key)):
            _s3().download_file(self.bucket, self._key(key), str(path))

    def delete(self, key: str) -> None:
        with _explained(join(self.uri, key)):
            _s3().delete_object(Bucket=self.bucket, Key=self._key(key))

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        from botocore.exceptions import ClientError

        if expected is None:
            return self.write(key, new, if_absent=True)
        with _explained(join(self.uri, key)):
            tag = self._tag(key)
            if tag is None or self.read(key) != expected:
                return False
            try:
                _s3().put_object(Bucket=self.bucket, Key=self._key(key), Body=new, IfMatch=tag)
            except ClientError as error:
                if _status(error) in (404, 409, 412):
                    return False
                raise
        return True

    def sub(self, prefix: str) -> "S3Store":
        return S3Store(join(self.uri, prefix))

    def local(self, key: str = "") -> Path | None:
        return None


@cache
def _s3() -> Any:
    """One client a process: boto3 clients are safe to share between threads, and slow to make."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        config=Config(retries={"mode": "adaptive", "max_attempts": 10}, connect_timeout=10, read_timeout=60),
    )


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise StorageError(f"{uri}: {error}") from error


def open_store(uri: str) -> Store:
    """The store at a URI: `s3://bucket/prefix`, `file:///folder` or a path."""
    if uri.startswith("s3://"):
        return S3Store(uri)
    if "://" in uri and not uri.startswith("file://"):
        raise StorageError(f"{uri}: unknown scheme; expected a folder or s3://bucket/prefix")
    return LocalStore(uri.removeprefix("file://"))


def join(uri: str, *parts: str) -> str:
    """`uri` with path parts added, one slash between each."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts if part)])


def _split(uri: str) -> tuple[Store, str]:
    root, _, name = uri.rstrip("/").rpartition("/")
    return open_store(root or "."), name


def exists(uri: str) -> bool:
    """Whether an object is there."""
    store, key = _split(uri)
    return store.exists(key)


def read_bytes(uri: str) -> bytes:
    store, key = _split(uri)
    return store.read(key)


def write_bytes(uri: str, data: bytes, *, if_absent: bool = False) -> bool:
    store, key = _split(uri)
    return store.write(key, data, if_absent=if_absent)


def read_json(uri: str) -> Any:
    """The JSON object at a URI. Raises StorageError when missing or not JSON."""
    try:
        return orjson.loads(read_bytes(uri))
    except orjson.JSONDecodeError as error:
        raise StorageError(f"{uri}: not valid JSON: {error}") from error


def write_json(uri: str, value: Any, *, if_absent: bool = False) -> bool:
    """Write JSON with sorted keys (same value, same bytes)."""
    return write_bytes(uri, to_json(value), if_absent=if_absent)


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def fetch_folder(uri: str, into: Path) -> Path:
    """A local path with the folder's content: the folder itself when it is local, else a download to `into`."""
    store = open_store(uri)
    here = store.local()
    if here is not None:
        if not here.is_dir():
            raise StorageError(f"{uri}: no such folder")
        return here
    for entry in store.list():
        target = into / entry.key
        if target.is_file() and target.stat().st_size == entry.size:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(TEMPORARY + target.name)
        store.download(entry.key, partial)
        partial.replace(target)
    return into


def upload_folder(path: Path, uri: str) -> None:
    """Copy a local folder's files to a URI, in sorted order."""
    store = open_store(uri)
    for file in sorted(item for item in path.rglob("*") if item.is_file()):
        store.upload(file, file.relative_to(path).as_posix())
