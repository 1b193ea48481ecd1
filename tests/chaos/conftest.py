from collections.abc import Iterator

import pytest

from tasks.curation.cluster import dask_client
from tests.chaos.calm import Calm, walk_calmly
from tests.end_to_end.runner import small_landing


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    """Two Dask workers for all tests of a module that spoil no worker."""
    with dask_client(2):
        yield


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """A landing zone, and what comes of it when nothing goes wrong."""
    root = tmp_path_factory.mktemp("calm")
    return walk_calmly(small_landing(root / "landing"), root / "home")
