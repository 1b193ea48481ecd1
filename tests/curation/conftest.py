"""Dask in this process: a real client, without the start-up of worker processes."""

from collections.abc import Iterator

import pytest
from distributed import Client

from tasks.curation.cluster import _activated


@pytest.fixture(scope="module")
def in_process() -> Iterator[Client]:
    """A client with one worker thread, which the steps find and share."""
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(**options) as client, _activated(client):
        yield client
