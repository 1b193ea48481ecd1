"""What a store is: a root URI and keys below it, with atomic writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

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

    def size(self, key: str) -> int | None:
        """Bytes of an object; None when it is not there."""
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

    def clear_unfinished(self) -> None:
        """Delete what processes that are gone were writing: after a `kill -9` a folder still has it, unlisted."""
        ...

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        """Replace the object only if its content is still `expected` (None: absent)."""
        ...

    def sub(self, prefix: str) -> "Store": ...

    def local(self, key: str = "") -> Path | None:
        """The real path of a key when the store is a folder of this machine, else None."""
        ...
