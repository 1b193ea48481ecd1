"""Commands of compose that start in seconds, started as processes of this machine. The whole: tests/end_to_end."""

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from tests.end_to_end.real_parts import RealParts, program


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[RealParts]:
    parts = RealParts(tmp_path)
    yield parts
    parts.end()


def test_postgres_takes_the_password_alone(parts: RealParts) -> None:
    parts.postgres()
    where = f"127.0.0.1:{parts.ports['postgres']}/airflow"

    def asked(secret: str) -> str:
        command = [program("psql"), f"postgresql://airflow:{secret}@{where}", "-Atc", "SHOW max_connections"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    assert asked(parts.secrets["POSTGRES_PASSWORD"]) == "200"
    assert asked("another") == ""
    assert parts.environment("scheduler")["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(where)


def test_redis_takes_the_password_alone(parts: RealParts) -> None:
    redis = pytest.importorskip("redis", reason="see requirements-deployment.txt")
    parts.redis()
    asked = redis.Redis(port=parts.ports["redis"], password=parts.secrets["REDIS_PASSWORD"])
    assert asked.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis(port=parts.ports["redis"]).ping()
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
    assert [line for line in listed if "redis-server" in line and parts.secrets["REDIS_PASSWORD"] in line] == []


def test_dask_runs_the_projects_code_and_says_that_it_is_well(parts: RealParts) -> None:
    parts.dask()
    with Client(f"tcp://127.0.0.1:{parts.ports['dask-scheduler']}", timeout="60s") as client:
        client.wait_for_workers(1, timeout=120)
        (worker,) = client.scheduler_info()["workers"].values()
        assert (worker["nthreads"], worker["memory_limit"]) == (1, 4 * 2**30)
        assert client.submit(lambda: __import__("tasks.curation.steps").__name__).result(timeout=120) == "tasks"
    for name in ("dashboard", "worker-dashboard"):
        with urllib.request.urlopen(f"http://127.0.0.1:{parts.ports[name]}/health", timeout=20) as answer:
            assert answer.read() == b"ok", "what compose's health check asks"
