"""How long this rank waits for others: time inside DeepSpeed's collectives, and in waiting for those under way.

DeepSpeed's own log of communication sees how long it takes to start an asynchronous gather, not to wait for it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOCAL = ("has_", "get_", "is_", "new_", "init_", "destroy_")  # methods of a backend that ask no other rank


class Clock:
    """Seconds spent in communication since they were last taken."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running = False

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time inside; once, where one collective calls another."""
        if self._running:
            yield
            return
        self._running, start = True, time.monotonic()
        try:
            yield
        finally:
            self._running = False
            self.seconds += time.monotonic() - start

    def take(self) -> float:
        taken, self.seconds = self.seconds, 0.0
        return taken


class TimedBackend:
    """DeepSpeed's communication backend, every collective of it measured."""

    def __init__(self, backend: Any, clock: Clock) -> None:
        self._backend, self._clock = backend, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if not callable(found) or name.startswith(("_", *LOCAL)):
            return found
        return self._timed(found)

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._clock.measure():
                work = collective(*args, **kwargs)
            return TimedWork(work, self._clock) if hasattr(work, "wait") else work

        return timed


class TimedWork:
    """A collective under way."""

    def __init__(self, work: Any, clock: Clock) -> None:
        self._work, self._clock = work, clock

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.measure():
            return self._work.wait(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def measured(clock: Clock) -> None:
    """Let `clock` count DeepSpeed's communication from now on. The last clock that asked is the one that counts."""
    from deepspeed.comm import comm

    backend = comm.cdb._backend if isinstance(comm.cdb, TimedBackend) else comm.cdb
    comm.cdb = TimedBackend(backend, clock)
