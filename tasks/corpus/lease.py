"""A lease on a place in a store: who works there now, known to all who might, and lost by a holder that is gone.

The record is one small object that names every holder. It is changed by compare-and-swap alone, and each holder
refreshes its own entry by a heartbeat. Of one work, several may hold a part each; who holds the whole, or does another
work, keeps all others out. A place that is free keeps a record that names nobody: deleting it would race with who is
just coming.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import orjson
import psutil

from tasks.corpus.machine import machine
from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import StorageError

SCHEMA_VERSION = 2
NAME = "lease.json"
BEAT = 15.0  # seconds between two signs of life
EXPIRES = 120.0  # seconds without one after which a holder counts as gone
WAKING = 2 * BEAT  # seconds for the next one, before that is believed
POLL = 1.0  # seconds between two looks of who waits
TRIES = 50  # of a compare-and-swap that meets others' changes
_mine: dict[str, "Lease"] = {}  # place → the lease that this process holds there
_not_given_back: list["Lease"] = []  # of this process, and at an end all the same
_log = logging.getLogger(__name__)


class Lease:
    """`with Lease(uri, work, what):` holds the place at `uri` for `work`, a content hash; `what` says it in words.

    With `part` it holds that part alone, and others may hold other parts for the same work. Raises StorageError when
    somebody else is at work there; a `patient` one waits for the end of who does the same work, and finds it done.
    While it waits it calls `waiting` every second, which may raise what ends the wait.
    Inside a lease of this process, another one is the same. A holder with the same `owner` is replaced: who owns the
    work was decided elsewhere.
    """

    def __init__(
        self,
        uri: str,
        work: str,
        what: str,
        *,
        part: str = "",
        patient: bool = False,
        owner: str = "",
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self.uri, self.work, self.patient, self._waiting = open_store(uri).uri, work, patient, waiting
        self._store = open_store(uri)
        self._ours = {
            "work": work,
            "what": what,
            "part": part,
            "machine": machine(),
            "process": os.getpid(),
            "started": psutil.Process().create_time(),
            "since": datetime.now(UTC).isoformat(timespec="microseconds"),
            "owner": owner,
        }
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Lease":
        outer = _mine.get(self.uri)
        if outer is not None and outer.work == self.work:
            return outer
        told = False
        while (other := self._join()) is not None:
            if not self.patient or other["work"] != self.work:
                raise StorageError(f"{_at_work(self.uri, other)}; wait for its end, or name another output")
            if not told:
                told = True
                _log.warning("%s; waiting for its end", _at_work(self.uri, other))
            self._waiting()
            time.sleep(POLL)
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
        try:
            self._leave()
        except StorageError as why:  # the work is done or has failed on its own; the record lapses without us
            _not_given_back.append(self)
            _log.warning("%s: the lease could not be given back and lapses by itself: %s", self.uri, why)
        if error is None:
            self.check()

    def check(self) -> None:
        """Raises StorageError when the lease went to another holder: what is done now may be undone by it."""
        if self._lost:
            raise StorageError(f"{self._lost}; this process was silent for too long and must not write any more")

    def _join(self) -> dict[str, Any] | None:
        """Enter ourselves among the holders, or return the one that is in the way."""
        part = self._ours["part"]
        for _ in range(TRIES):
            before, holders = self._look()
            others = [holder for holder in holders if not (_is_gone(holder) or self._replaces(holder))]
            for other in others:
                if other["work"] != self.work or other["part"] in ("", part) or not part:
                    return other
            if self._write(before, [*others, self._now()]):
                return None
        raise self._restless()

    def _refresh(self) -> str | None:
        """Renew our entry; why not, when we are no longer among the holders."""
        for _ in range(TRIES):
            before, holders = self._read()
            if not any(self._is_ours(holder) for holder in holders):
                others = [holder for holder in holders if not _is_gone(holder)]
                return _at_work(self.uri, others[0]) if others else f"{self.uri}: another run was at work here"
            if self._write(before, [self._now() if self._is_ours(holder) else holder for holder in holders]):
                return None
        raise self._restless()

    def _leave(self) -> None:
        for _ in range(TRIES):
            before, holders = self._read()
            left = [holder for holder in holders if not self._is_ours(holder)]
            if left == holders or self._write(before, left):
                return
        raise self._restless()

    def _look(self) -> tuple[bytes | None, list[dict[str, Any]]]:
        """What is on record. Who is silent is looked at again and again for a while: where a machine slept, all are
        silent as it wakes."""
        deadline = time.monotonic() + WAKING
        while True:
            before, holders = self._read()
            silent = [holder for holder in holders if _is_silent(holder) and not _has_ended(holder)]
            if all(map(self._replaces, silent)) or time.monotonic() >= deadline:
                return before, holders
            self._waiting()
            time.sleep(POLL)

    def _read(self) -> tuple[bytes | None, list[dict[str, Any]]]:
        if not self._store.exists(NAME):
            return None, []
        data = self._store.read(NAME)
        return data, orjson.loads(data).get("holders", [])

    def _write(self, before: bytes | None, holders: list[dict[str, Any]]) -> bool:
        return self._store.compare_and_swap(
            NAME, before, to_json({"schema_version": SCHEMA_VERSION, "holders": holders})
        )

    def _now(self) -> dict[str, Any]:
        return {**self._ours, "beat": time.time()}

    def _is_ours(self, holder: dict[str, Any]) -> bool:
        return all(holder[name] == self._ours[name] for name in ("machine", "process", "started", "since"))

    def _replaces(self, holder: dict[str, Any]) -> bool:
        return bool(holder["owner"]) and holder["owner"] == self._ours["owner"]

    def _restless(self) -> StorageError:
        return StorageError(f"{join(self.uri, NAME)}: changes faster than it can be read; is the store consistent?")

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            try:
                self._lost = self._refresh()
            except StorageError:
                continue  # a store that is away for a moment; the holder's own work will tell when it stays away
            if self._lost:
                return


def _at_work(uri: str, holder: dict[str, Any]) -> str:
    return (
        f"{uri}: another run is at work here: {holder['what']}, process {holder['process']} on "
        f"{holder['machine'].split()[0]} since {holder['since'][:19]}"
    )


def _is_gone(holder: dict[str, Any]) -> bool:
    return _is_silent(holder) or _has_ended(holder)


def _is_silent(holder: dict[str, Any]) -> bool:
    return time.time() - holder["beat"] > EXPIRES


def _has_ended(holder: dict[str, Any]) -> bool:
    """Whether its process has, as far as this machine can tell."""
    if holder["machine"] != machine():
        return False
    if any(lease._is_ours(holder) for lease in _not_given_back):
        return True
    try:
        process = psutil.Process(holder["process"])
        return process.create_time() != holder["started"] or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
