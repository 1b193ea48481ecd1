"""Fixtures that several areas share, and how the tests are shared out among processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED_DATA = REPOSITORY.parent / "shared" / "data" / "dev"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that all processes end at about the same time."""
    items.sort(key=lambda item: "end_to_end" not in item.path.parts)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a file's tests stay in one process, and so do all that start Airflow: two at once need four cores."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "tests/end_to_end" if file.startswith("tests/end_to_end/") else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the development data sets; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the development data sets are not beside this checkout (../shared/data/dev)")
    return SHARED_DATA


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of a real S3 server (moto's) on loopback."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """URI of a fresh bucket; the environment is set up so that boto3 and child processes find it."""
    import hashlib

    import boto3

    from tasks.corpus import s3_store

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3_store.client.cache_clear()
    name = "t" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/some prefix"
