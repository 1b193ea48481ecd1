"""A lock that ends with its owner: `flock` on a file, released by the kernel however the process ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Held(Exception):
    """Somebody else has the lock; the text is what they wrote into it."""


@contextmanager
def hold(path: Path, *, note: str = "", wait: float = 0.0) -> Iterator[None]:
    """Hold the lock `path`, waiting at most `wait` seconds. Raises Held."""
    deadline = time.monotonic() + wait
    with path.open("a+", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    raise Held(file.read().strip()) from None
                time.sleep(0.1)
        file.truncate(0)
        file.write(note or f"process {os.getpid()}")
        file.flush()
        yield
