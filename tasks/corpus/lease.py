"""A lease on a place in a store: who works there now, known to all who might, and lost by a holder that is gone.

The record is one small object, changed by compare-and-swap and refreshed by a heartbeat. Holders of the same work may
share a place (they write the same bytes); an exclusive holder, or another work, keeps all others out.
"""

import os
import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
import psutil

from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import StorageError

SCHEMA_VERSION = 1
NAME = "lease.json"
BEAT = 15.0  # seconds between two signs of life
EXPIRES = 120.0  # seconds without one after which a holder counts as gone
_mine: dict[str, "Lease"] = {}  # place → the lease that this process holds there


class Lease:
    """`with Lease(uri, work, what):` holds the place at `uri` for `work`, a content hash; `what` says it in words.

    Raises StorageError when somebody else is at work there. Inside a lease of this process, another one is the same.
    """

    def __init__(self, uri: str, work: str, what: str, *, exclusive: bool = True) -> None:
        self.uri, self.work = open_store(uri).uri, work
        self._store = open_store(uri)
        self._ours = {
            "schema_version": SCHEMA_VERSION,
            "work": work,
            "what": what,
            "exclusive": exclusive,
            "machine": _machine(),
            "process": os.getpid(),
            "started": psutil.Process().create_time(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Lease":
        outer = _mine.get(self.uri)
        if outer is not None and outer.work == self.work:
            return outer
        refusal = self._take()
        if refusal:
            raise StorageError(refusal)
        _mine[self.uri] = self
        self._thread = threading.Thread(target=self._beat, name=f"lease of {self.uri}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        del _mine[self.uri]
        self._ended.set()
        self._thread.join()
        _, record = self._read()
        if record and self._is_ours(record):
            self._store.delete(NAME)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raises StorageError when the lease went to another holder: what is done now may be undone by it."""
        if self._lost:
            raise StorageError(f"{self._lost}; this process was silent for too long and must not write any more")

    def _take(self) -> str | None:
        """Take or refresh the place; why not, when it is another's."""
        for _ in range(20):
            before, record = self._read()
            if record and not self._is_ours(record) and not _is_gone(record):
                if record["work"] == self.work and not (record["exclusive"] or self._ours["exclusive"]):
                    return None  # shared; its holder's sign of life is enough
                return (
                    f"{self.uri}: another run is at work here: {record['what']}, process {record['process']} on "
                    f"{record['machine'].split()[0]} since {record['since']}; wait for its end, or name another output"
                )
            if self._store.compare_and_swap(NAME, before, to_json({**self._ours, "beat": time.time()})):
                return None
        return f"{join(self.uri, NAME)}: changes faster than it can be read; is the store consistent?"

    def _read(self) -> tuple[bytes | None, dict[str, Any] | None]:
        if not self._store.exists(NAME):
            return None, None
        try:
            data = self._store.read(NAME)
            return data, orjson.loads(data)
        except StorageError:  # deleted just now
            return None, None

    def _is_ours(self, record: dict[str, Any]) -> bool:
        return all(record[name] == self._ours[name] for name in ("machine", "process", "started", "since"))

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._lost = self._take()
            except StorageError:
                continue  # a store that is away for a moment; the holder's own work will tell when it stays away
            if self._lost:
                return


def _machine() -> str:
    """Host, and the table of processes that a process number is of."""
    return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink() if Path('/proc/self/ns').exists() else ''}"


def _is_gone(record: dict[str, Any]) -> bool:
    if time.time() - record["beat"] > EXPIRES:
        return True
    if record["machine"] != _machine():
        return False
    try:
        return psutil.Process(record["process"]).create_time() != record["started"]
    except psutil.NoSuchProcess:
        return True
