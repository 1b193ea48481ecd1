"""One small interface over a local folder and S3, used by everything that reads or writes.

A store is a root URI (a folder, or `s3://bucket/prefix`); keys are POSIX paths below it. Every write is atomic: a
temporary name and a rename locally, a single put or a multipart completion on S3. So a reader sees the old object,
or the new one, or none; never half of one.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from tasks.corpus.local_store import LocalStore
from tasks.corpus.s3_store import S3Store
from tasks.corpus.store import TEMPORARY, Entry, Store
from tasks.errors import StorageError

__all__ = [
    "Entry",
    "LocalStore",
    "S3Store",
    "Store",
    "exists",
    "fetch_folder",
    "join",
    "open_store",
    "read_bytes",
    "read_json",
    "to_json",
    "upload_folder",
    "write_bytes",
    "write_json",
]


def open_store(uri: str) -> Store:
    """The store at a URI: `s3://bucket/prefix`, `file:///folder` (percent-encoded) or a path."""
    if not uri:
        raise StorageError("an empty URI; expected a folder or s3://bucket/prefix")
    if uri.startswith("s3://"):
        if not re.match(r"s3://[\w.-]{3,255}(/|$)", uri, re.ASCII):
            raise StorageError(f"{uri}: names no bucket; expected s3://bucket/prefix")
        return S3Store(uri)
    if "://" in uri and not uri.startswith("file://"):
        raise StorageError(f"{uri}: unknown scheme; expected a folder or s3://bucket/prefix")
    if not uri.startswith("file://"):
        return LocalStore(uri)
    host, slash, path = uri.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise StorageError(f"{uri}: names the machine {host!r}; a folder of this one is file:///folder")
    return LocalStore(unquote(slash + path))


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
