"""Tables that take a second to build, kept in the user's own cache folder and named by what they are built from."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

Tables = dict[str, np.ndarray]


def cached_tables(name: str, built_from: bytes, build: Callable[[], Tables]) -> Tables:
    """What `build` returns, from the cache when it is there and whole. `built_from` is all that decides its content."""
    path = _folder() / f"{name}-{hashlib.blake2b(built_from, digest_size=16).hexdigest()}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:  # a zip, whose checksums tell a damaged file
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        tables = build()  # not there, or not whole
    try:
        _save(path, tables)
    except OSError:
        return tables  # a cache that cannot be written is only slower
    return tables


def _folder() -> Path:
    """Not in a shared /tmp, where anybody could plant a table."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "athanor"


def _save(path: Path, tables: Tables) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        np.savez(file, allow_pickle=False, **tables)  # type: ignore[arg-type]  # its stub takes names for options
    Path(file.name).replace(path)
