"""Dask for one step: an external scheduler by address, or a small cluster of processes of our own."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from distributed import Client, as_completed
from distributed.deploy.subprocess import SubprocessCluster

from tasks.settings import REPOSITORY

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
    with (
        SubprocessCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=None,  # type: ignore[arg-type]  # None turns it off, as its documentation says
            scheduler_kwargs={"idle_timeout": "1 hour"},
            worker_kwargs={"death_timeout": "60 seconds"},
        ) as cluster,
        Client(cluster, timeout="60s") as client,
        _activated(client),
    ):
        yield client


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
    errors. One item's failure, a killed worker included, is never another's.
    """
    if not items:
        return [], []
    futures = [client.submit(function, item, *arguments, pure=False) for item in items]
    position = {future.key: number for number, future in enumerate(futures)}
    results: dict[int, Any] = {}
    failures: dict[int, Exception] = {}
    for future in as_completed(futures):
        number = position[future.key]
        error = future.exception()
        if error is None:
            results[number] = future.result()
            if on_done:
                on_done(items[number], results[number])
        else:
            failures[number] = error
        future.release()
    return [results[n] for n in sorted(results)], [(items[n], failures[n]) for n in sorted(failures)]
