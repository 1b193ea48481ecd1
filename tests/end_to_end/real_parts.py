"""The parts of docker/compose.yaml as processes of this machine: the very commands and environment, at other addresses.

PostgreSQL, Redis, a Dask scheduler with workers, and every part of Airflow, with Celery. The S3 server is moto's, since
the one that compose names is no Python package.
"""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api
from tasks.corpus import s3_client
from tasks.corpus.storage import upload_folder
from tasks.settings import REPOSITORY
from tests.docker.test_images import COMPOSE, SECRETS, compose
from tests.end_to_end.runner import MICRO

PORTS = ("postgres", "redis", "s3", "api-server", "dask-scheduler", "health", "dashboard", "worker-dashboard")
FOREIGN = ("AIRFLOW", "ATHANOR", "AWS_")
START = 300.0  # seconds for one part
AT_HOME = {  # beside compose's own words: several parts share this machine's ports and name
    "triggerer": ["--skip-serve-logs"],
    "worker": ["--skip-serve-logs", "--celery-hostname", "worker@%h"],
    "trainer": ["--skip-serve-logs", "--celery-hostname", "trainer@%h"],
}


@dataclass
class RealParts:
    """Started by `start`, ended by `end`. `data` and `store` are on S3."""

    root: Path
    data: str = "s3://athanor/landing"
    store: str = "s3://athanor/store"
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    api: Api | None = None

    def __post_init__(self) -> None:
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.secrets = dict.fromkeys(SECRETS, "s3cret") | {"FERNET_KEY": "A" * 43 + "=", "JWT_SECRET": "j" * 64}
        done = compose(COMPOSE, **self.secrets, UI_URL=f"http://127.0.0.1:{self.ports['api-server']}")
        assert done.returncode == 0, done.stderr
        self.services: dict[str, Any] = json.loads(done.stdout.replace("$$", "$"))["services"]

    def start(self, landing: Path) -> Api:
        """All parts, in the order in which they need each other; `landing` is uploaded."""
        for name, value in self.environment("dask-worker").items():
            if name.startswith("AWS_"):
                os.environ[name] = value
        s3_client.client.cache_clear()
        self.postgres()
        self.redis()
        self._run("s3", ["moto_server", "--host", "127.0.0.1", "--port", str(self.ports["s3"])])
        self._answers("s3")
        prepared = self._run("prepare", self.services["prepare"]["command"])
        assert prepared.wait(START) == 0, self.log("prepare")
        upload_folder(landing, self.data)
        self.dask()
        for part in ("api-server", "scheduler", "dag-processor", "triggerer", "worker", "trainer"):
            self._run(part, [*self._here(part), *AT_HOME.get(part, [])])
        self._answers("api-server")
        return Api(f"http://127.0.0.1:{self.ports['api-server']}", "admin", self.secrets["UI_PASSWORD"])

    def end(self) -> None:
        for process in reversed(self.processes):
            stop(process)
        for process in psutil.process_iter():  # trainers are in sessions of their own
            if home_of(process) == str(self.root / "home"):
                process.kill()
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)

    def environment(self, part: str) -> dict[str, str]:
        """Compose's, at this machine's addresses and folders."""
        said = {name: self._at_home(value) for name, value in self.services[part].get("environment", {}).items()}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
        return {
            **inherited,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(REPOSITORY),
            "AIRFLOW_HOME": str(self.root / "airflow"),
            **said,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.ports["api-server"]),
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(self.ports["health"]),
            **({"ATHANOR_RECIPE": str(MICRO)} if "ATHANOR_RECIPE" in said else {}),
        }

    def log(self, part: str) -> str:
        return (self.root / f"{part}.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _at_home(self, words: str) -> str:
        for name, port in (("postgres", 5432), ("redis", 6379), ("s3", 9000), ("api-server", 8080)):
            words = words.replace(f"{name}:{port}", f"127.0.0.1:{self.ports[name]}")
        words = words.replace("dask-scheduler:8786", f"127.0.0.1:{self.ports['dask-scheduler']}")
        folders = {"/opt/athanor": REPOSITORY, "/opt/airflow": self.root / "airflow", "/tmp/dask": self.root}
        for there, here in {**folders, "/var/lib/athanor": self.root / "home"}.items():
            words = words.replace(there, str(here))
        return words

    def _here(self, part: str) -> list[str]:
        """The part's command, listening on loopback alone."""
        ports = {"8786": "dask-scheduler", ":8787": "dashboard", ":8788": "worker-dashboard"}
        words = [self._at_home(word) for word in self.services[part]["command"]]
        here = {word: f"{':' if word[0] == ':' else ''}{self.ports[name]}" for word, name in ports.items()}
        return [{"0.0.0.0": "127.0.0.1", **here}.get(word, word) for word in words]

    def redis(self) -> None:
        program("redis-server")
        *shell, words = self.services["redis"]["command"]
        self._run("redis", [*shell, f"{words} --port {self.ports['redis']} --bind 127.0.0.1"])
        self._answers("redis")

    def dask(self) -> None:
        """The scheduler, and one worker."""
        self._run("dask-scheduler", self._here("dask-scheduler"))
        self._answers("dask-scheduler")
        self._run("dask-worker", self._here("dask-worker"))

    def _run(self, part: str, command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        with (self.root / f"{part}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **{"cwd": REPOSITORY, "env": self.environment(part), **options},
            )
        self.processes.append(process)
        return process

    def _answers(self, part: str) -> None:
        def connected() -> bool:
            assert self.processes[-1].poll() is None, self.log(part)
            with socket.socket() as caller:
                return caller.connect_ex(("127.0.0.1", self.ports[part])) == 0

        until(connected)

    def postgres(self) -> None:
        """A cluster of its own; its programs refuse to work for root, so another user does then."""
        nobody = pwd.getpwnam("nobody")
        other: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        given = other if os.geteuid() == 0 else {}
        place = Path(tempfile.mkdtemp(prefix="athanor-postgres-"))
        self.places.append(place)
        secret = self.services["postgres"]["environment"]["POSTGRES_PASSWORD"]
        (place / "password").write_text(secret, encoding="utf-8")
        for path in (place, place / "password"):
            os.chown(path, given.get("user", -1), given.get("group", -1))
        database = str(place / "data")
        words = ["--username", "airflow", "--auth", "scram-sha-256", "--pwfile", str(place / "password")]
        words += ["--encoding", "UTF8", "--no-locale"]
        subprocess.run([program("initdb"), "-D", database, *words], check=True, capture_output=True, cwd=place, **given)
        where = ["-D", database, "-p", str(self.ports["postgres"]), "-h", "127.0.0.1", "-k", str(place)]
        _, *words = self.services["postgres"]["command"]
        self._run("postgres", [program("postgres"), *words, *where], cwd=place, **given)
        self._answers("postgres")
        login = f"postgresql://airflow:{secret}@127.0.0.1:{self.ports['postgres']}/postgres"
        create = [program("psql"), login, "-c", "CREATE DATABASE airflow"]
        until(lambda: subprocess.run(create, capture_output=True).returncode == 0, 30)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a part and all that it started in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def home_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("ATHANOR_HOME")
    except psutil.Error:
        return None


def program(name: str) -> str:
    """A program of PostgreSQL; Debian keeps them apart from the path."""
    folders = [os.environ["PATH"], *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not here; on Debian and Ubuntu: apt install postgresql redis-server")
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for item in sockets:
        item.bind(("127.0.0.1", 0))
    found = [item.getsockname()[1] for item in sockets]
    for item in sockets:
        item.close()
    return found


def until(found: Callable[[], Any], seconds: float = START) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.5)
