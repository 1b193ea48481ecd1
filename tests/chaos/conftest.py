from collections.abc import Iterator

import pytest

from tasks.curation.cluster import dask_client


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    """Two Dask workers for all tests of a module that spoil no worker."""
    with dask_client(2):
        yield
