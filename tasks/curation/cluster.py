"""Dask for one step: an external scheduler by address, or a small cluster of processes of our own."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import dask
from distributed import Client, as_completed
from distributed.deploy.spec import SpecCluster
from distributed.deploy.subprocess import SubprocessCluster

from tasks.errors import ClusterError
from tasks.settings import REPOSITORY

NO_WORKERS = 120.0  # seconds without a worker after which a step fails; workers of a busy machine start slowly
PRELOAD = ["tasks.curation.dask_preload"]
# Dask's processes look at themselves up to a hundred times a second, which costs more than short steps do.
CALM = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "5s",
}
Item = TypeVar("Item")
_active: ContextVar[Client | None] = ContextVar("dask_client", default=None)


@contextmanager
def dask_client(workers: int, scheduler: str | None = None) -> Iterator[Client]:
    """A connected client. A step inside another `dask_client` shares the outer one.

    The cluster's processes are started as commands and not forked: inside an Airflow task, Dask's usual local cluster
    cannot start (its children import Airflow's entry point again).
    """
    outer = _active.get()
    if outer is not None:
        yield outer
        return
    if scheduler:
        with Client(scheduler, timeout="60s") as client, _activated(client):
            yield client
        return
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *(part for part in path if part)])
    for name, value in CALM.items():
        os.environ.setdefault(name, value)
    lost = False
    cluster = SubprocessCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=None,  # type: ignore[arg-type]  # None turns it off, as its documentation says
        scheduler_kwargs={"idle_timeout": "1 hour", "preload": PRELOAD},
        worker_kwargs={"death_timeout": "60 seconds", "preload_nanny": PRELOAD},
    )
    try:
        with Client(cluster, timeout="60s") as client, _activated(client):
            try:
                yield client
            finally:
                lost = client.status != "running"
    finally:
        _end(cluster, lost)


def _end(cluster: SpecCluster, lost: bool) -> None:
    """End the cluster's processes. One whose scheduler was `lost` cannot be asked to."""
    if not lost:
        cluster.close()
        return
    for worker in list(cluster.workers.values()):
        cluster.sync(worker.close)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), suppress(OSError, TimeoutError):
        cluster.close()


@contextmanager
def _activated(client: Client) -> Iterator[None]:
    token = _active.set(client)
    try:
        yield
    finally:
        _active.reset(token)


def map_shards(
    client: Client,
    function: Callable[..., Any],
    items: Sequence[Item],
    *arguments: Any,
    on_done: Callable[[Item, Any], None] | None = None,
) -> tuple[list[Any], list[tuple[Item, Exception]]]:
    """`function(item, *arguments)` for every item, spread over the workers.

    Returns the results in the order of `items` (of those that succeeded), and the items that failed with their
    errors. One item's failure, a killed worker included, is never another's. Raises ClusterError when the scheduler is
    gone, or no worker has been there for NO_WORKERS seconds.
    """
    if not items:
        return [], []
    futures = [client.submit(function, item, *arguments, pure=False) for item in items]
    position = {future.key: number for number, future in enumerate(futures)}
    results: dict[int, Any] = {}
    failures: dict[int, Exception] = {}
    with _watched(client, futures):
        for future in as_completed(futures):
            number = position[future.key]
            if future.cancelled():
                raise ClusterError(
                    f"the Dask {'workers are' if client.status == 'running' else 'scheduler is'} gone, with "
                    f"{len(items) - len(results) - len(failures)} of {len(items)} pieces not done; run the step again"
                )
            error = future.exception()
            if error is None:
                results[number] = future.result()
                if on_done:
                    on_done(items[number], results[number])
            else:
                failures[number] = error
            future.release()
    return [results[n] for n in sorted(results)], [(items[n], failures[n]) for n in sorted(failures)]


@contextmanager
def _watched(client: Client, futures: list[Any]) -> Iterator[None]:
    """Cancel the futures when no worker is there for long: else they would be waited for without end."""
    ended = threading.Event()

    def watch() -> None:
        missing_since: float | None = None
        while not ended.wait(1):
            if client.status != "running" or client.scheduler_info()["workers"]:
                missing_since = None
                continue
            missing_since = missing_since or time.monotonic()
            if time.monotonic() - missing_since > NO_WORKERS:
                client.cancel(futures, force=True)
                return

    thread = threading.Thread(target=watch, name="Dask workers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
