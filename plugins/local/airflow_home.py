"""AIRFLOW_HOME of this machine: configuration through the environment, generated secrets."""

import base64
import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from plugins.credentials import ENVIRONMENT as CREDENTIALS
from plugins.local.ports import HOST
from tasks.settings import REPOSITORY, Settings

USER = "admin"
PASSWORDS = "passwords.json"
DATABASE_SECONDS, API_SERVER_DATABASE_SECONDS = 60, 2  # how long a part waits for SQLite's one writer


def prepare(settings: Settings) -> tuple[Path, dict[str, str]]:
    """The folder and the environment in which `airflow standalone` and its tasks run, but for its port (`at_port`)."""
    folder = settings.home / "airflow"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _kept(folder / PASSWORDS, lambda: {USER: secrets.token_urlsafe(16)})
    generated = _kept(folder / "secrets.json", _new_secrets)
    return folder, environment(settings, folder, generated)


def password(folder: Path) -> str:
    """The generated password of `admin`. Never print it; print where it is."""
    return json.loads((folder / PASSWORDS).read_text(encoding="utf-8"))[USER]


def api_server_environment(inherited: dict[str, str]) -> dict[str, str]:
    """The API server waits less for a busy database than other parts do.

    It commits a request's audit entry on its event loop. When another request of the same server holds the database,
    and needs that loop to commit, the wait is in vain however long it is, and every request stands still meanwhile.
    Whoever asked gets status 500, and asks again.
    """
    url = inherited["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].partition("?")[0]
    return inherited | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"{url}?timeout={API_SERVER_DATABASE_SECONDS}"}


def environment(settings: Settings, folder: Path, generated: dict[str, str]) -> dict[str, str]:
    """This process' environment without foreign Airflow settings, with the project's own."""
    inherited = {key: value for key, value in os.environ.items() if key == CREDENTIALS or not key.startswith("AIRFLOW")}
    return inherited | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(REPOSITORY),
        "ATHANOR_HOME": str(settings.home),
        "ATHANOR_DATA": settings.data,
        "ATHANOR_STORE": settings.store,
        "ATHANOR_WORKERS": str(settings.workers),
        "ATHANOR_MAX_GROUPS": str(settings.max_groups),
        "ATHANOR_FAILED_BUDGET": str(settings.failed_budget),
        "ATHANOR_RECIPE": settings.recipe,
        "ATHANOR_CURATION": settings.curation,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",  # SQLite's limit, and about 130 MB a worker
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / PASSWORDS),
        "AIRFLOW__CORE__FERNET_KEY": generated["fernet_key"],
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db?timeout={DATABASE_SECONDS}",
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__SECRET_KEY": generated["secret_key"],
        "AIRFLOW__API_AUTH__JWT_SECRET": generated["jwt_secret"],
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # training may leave the server little of the machine
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "8",  # four minutes: long enough for a killed server to be back
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "2",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "120",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",  # what a killed scheduler had queued is queued again
        # The runner asks every second; a gate's validation tells two hundred lines of its own set-up.
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "http.access=WARNING great_expectations=WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "SCARF_ANALYTICS": "false",
        "GX_ANALYTICS_ENABLED": "False",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        **lineage(folder, wanted=settings.openlineage),
    }


def lineage(folder: Path, *, wanted: bool) -> dict[str, str]:
    """OpenLineage's settings: events of runs and tasks go to the folder's `lineage/`, a line each, a file a day."""
    transport = {"type": "plugins.lineage.DailyFiles", "folder": str(folder / "lineage")}
    return {
        "AIRFLOW__OPENLINEAGE__DISABLED": str(not wanted),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "athanor",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
    }


def at_port(port: int) -> dict[str, str]:
    """What is added to the environment when the port is known."""
    url = f"http://{HOST}:{port}"
    return {
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
    }


def _new_secrets() -> dict[str, str]:
    return {
        "fernet_key": base64.urlsafe_b64encode(os.urandom(32)).decode(),
        "secret_key": secrets.token_urlsafe(32),
        "jwt_secret": secrets.token_urlsafe(48),
    }


def _kept(path: Path, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """The secrets in `path`, made at the first time and readable by this user alone."""
    if not path.exists():
        unfinished = path.with_suffix(".tmp")
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(make(), file)
        unfinished.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))
