"""The parts of docker/compose.yaml as processes of this machine: the very commands and environment, at other addresses.

PostgreSQL, Redis, a Dask scheduler with workers, and every part of Airflow, with Celery. The S3 server is moto's, since
the one that compose names is no Python package.
"""

import base64
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api
from tasks.corpus import s3_client
from tasks.corpus.storage import join, read_json, upload_folder
from tasks.settings import REPOSITORY
from tests.docker.test_images import COMPOSE, SECRETS, compose
from tests.end_to_end.runner import MICRO

AIRFLOW = ("api-server", "scheduler", "dag-processor", "triggerer", "worker", "trainer")  # in the order of their start
PORTS = ("postgres", "redis", "s3", "api-server", "dask-scheduler", "health", "dashboard", "worker-dashboard")
FOREIGN = ("AIRFLOW", "ATHANOR", "AWS_")
START = 300.0  # seconds for one part
USERS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS"
ADDRESSES = {  # in compose's words → the part that listens there
    **{"postgres:5432": "postgres", "redis:6379": "redis", "s3:9000": "s3", "api-server:8080": "api-server"},
    **{"dask-scheduler:8786": "dask-scheduler", "localhost:8080": "api-server", "localhost:8974": "health"},
    **{"localhost:8787": "dashboard", "localhost:8788": "worker-dashboard"},
}
AT_HOME = {  # beside compose's own words: several parts share this machine's ports and name
    "triggerer": ["--skip-serve-logs"],
    "worker": ["--skip-serve-logs", "--celery-hostname", "worker@%h"],
    "trainer": ["--skip-serve-logs", "--celery-hostname", "trainer@%h"],
}


class FromStore(Api):
    """Large results lie in the store (plugins/xcom.py): Airflow's API tells their names alone."""

    store = ""

    def result(self, instance: dict[str, Any]) -> Any:
        value = super().result(instance)
        name = value.get("athanor_xcom") if isinstance(value, dict) else None
        return value if name is None else read_json(join(self.store, "xcom", name))


@dataclass
class RealParts:
    """Started by `start`, ended by `end`. `data` and `store` are on S3."""

    root: Path
    data: str = "s3://athanor/landing"
    store: str = "s3://athanor/store"
    viewer: str = field(default_factory=secrets.token_hex)  # password of a user who may look and nothing else
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    places: list[Path] = field(default_factory=list)
    api: Api | None = None

    def __post_init__(self) -> None:
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        fernet = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        self.secrets = {name: secrets.token_hex(32) for name in SECRETS} | {"FERNET_KEY": fernet}
        done = compose(COMPOSE, **self.secrets, UI_URL=self.url)
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
        self._prepare()
        upload_folder(landing, self.data)
        self.dask()
        for part in AIRFLOW:
            self._run(part, [*self._here(part), *AT_HOME.get(part, [])])
        self.api = api = FromStore(self.url, "admin", self.secrets["UI_PASSWORD"])
        api.store = self.store
        until(lambda: self.all_work() and api.healthy(), 2 * START, "Airflow's parts are well")
        return api

    def all_work(self) -> bool:
        """True. Fails with the last words of a part that has ended."""
        for part, process in self.processes.items():
            assert process.poll() is None, f"{part} has ended: {self.log(part)}"
        return True

    def end(self) -> None:
        stop(*self.processes.values())
        for process in psutil.process_iter():  # trainers are in sessions of their own
            if home_of(process) == str(self.root / "home"):
                process.kill()
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)

    def is_well(self, part: str) -> bool:
        """What compose's own health check says of a part."""
        kind, *words = self.services[part]["healthcheck"]["test"]
        command = [self._at_home(word) for word in words]
        if kind == "CMD-SHELL":
            here = f"{part}@{socket.gethostname()}"
            command = ["sh", "-c", command[0].replace("celery@$HOSTNAME", here)]
        elif part == "redis":
            command[1:1] = ["-p", str(self.ports["redis"])]
        environment = {**self.environment(part), "PGHOST": "127.0.0.1", "PGPORT": str(self.ports["postgres"])}
        return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True).returncode == 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['api-server']}"

    @property
    def database(self) -> str:
        secret = self.secrets["POSTGRES_PASSWORD"]
        return f"postgresql://airflow:{secret}@127.0.0.1:{self.ports['postgres']}/airflow"

    def asked(self, query: str) -> str:
        """What the metadata database answers: a line a row, its fields apart by |."""
        done = subprocess.run([program("psql"), self.database, "-Atc", query], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token(self, user: str, password: str) -> str:
        """A login at the API server."""
        login = json.dumps({"username": user, "password": password}).encode()
        request = urllib.request.Request(f"{self.url}/auth/token", login, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["access_token"]

    def answer(self, method: str, path: str, token: str | None = None) -> tuple[int, bytes]:
        """Status and body of the API server's answer to a request."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = b'{"released": "", "why": "because"}' if method != "GET" else None
        headers |= {"Content-Type": "application/json"} if body else {}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

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
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": "127.0.0.1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(self.ports["health"]),
            **({USERS: "admin:admin,viewer:viewer"} if USERS in said else {}),
            **({"ATHANOR_RECIPE": str(MICRO)} if "ATHANOR_RECIPE" in said else {}),
        }

    def log(self, part: str) -> str:
        return (self.root / f"{part}.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _at_home(self, words: str) -> str:
        for there, name in ADDRESSES.items():
            words = words.replace(there, f"127.0.0.1:{self.ports[name]}")
        folders = {"/opt/athanor": REPOSITORY, "/opt/airflow": self.root / "airflow", "/tmp/dask": self.root}
        for there, here in {**folders, "/var/lib/athanor": self.root / "home"}.items():
            words = words.replace(there, str(here))
        return words

    def _here(self, part: str) -> list[str]:
        """The part's command, listening on loopback alone."""
        loopback = {":8787": "dashboard", ":8788": "worker-dashboard"}
        here = {word: f"127.0.0.1:{self.ports[name]}" for word, name in loopback.items()}
        here |= {"0.0.0.0": "127.0.0.1", "8786": str(self.ports["dask-scheduler"])}
        return [here.get(word, self._at_home(word)) for word in self.services[part]["command"]]

    def _prepare(self) -> None:
        """What compose does once; and a second user."""
        prepared = self._run("prepare", self.services["prepare"]["command"])
        assert prepared.wait(START) == 0, self.log("prepare")
        del self.processes["prepare"]
        passwords = Path(self.environment("prepare")["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
        passwords.write_text(json.dumps({"admin": self.secrets["UI_PASSWORD"], "viewer": self.viewer}))

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
        self.processes[part] = process
        return process

    def _answers(self, part: str) -> None:
        def connected() -> bool:
            self.all_work()
            with socket.socket() as caller:
                return caller.connect_ex(("127.0.0.1", self.ports[part])) == 0

        until(connected, what=f"{part} listens")

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
        create = [program("psql"), self.database.removesuffix("airflow") + "postgres", "-c", "CREATE DATABASE airflow"]
        until(lambda: subprocess.run(create, capture_output=True).returncode == 0, 30, "there is a database")


def stop(*processes: "subprocess.Popen[bytes]") -> None:
    """End parts and all that they started in their sessions."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with suppress(AssertionError):
            until(lambda: all(process.poll() is not None for process in processes), 20)


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


def until(found: Callable[[], Any], seconds: float = START, what: str = "this is true") -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"in {seconds:.0f} s it did not come to pass that {what}"
        time.sleep(0.5)
