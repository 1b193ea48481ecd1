"""Airflow's REST API, as far as the runner needs it."""

import http.client
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tasks.errors import AthanorError

PAGE = 100
TIMEOUT = 60.0  # seconds; training may leave the server little of the machine
PATIENCE = 180.0  # seconds without an answer; a killed server is started again within one minute


class ApiError(AthanorError):
    """The server refused a request, or cannot be reached."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One logged-in user at one Airflow."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url, self._user, self._password = url, user, password
        self._token: str | None = None

    # -- the machine ---------------------------------------------------------------------------------------------

    def healthy(self) -> bool:
        """True when the server answers and scheduler, triggerer and DAG processor have reported.

        The part of the server that tasks talk to builds its routes at the first request, which takes long: asking here
        keeps the first task from waiting, and timing out.
        """
        try:
            self._send("GET", "/execution/health", token=False, patience=0.0)
            parts = self._send("GET", "/api/v2/monitor/health", token=False, patience=0.0)
        except ApiError:
            return False
        names = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all(parts[name]["status"] == "healthy" for name in names)

    def import_errors(self) -> list[dict[str, Any]]:
        return self._get("/importErrors")["import_errors"]

    def ensure_pool(self, name: str, slots: int, description: str) -> None:
        """Create the pool when it is missing; an existing one keeps what a person set. Deferred tasks count."""
        body = {"name": name, "slots": slots, "description": description, "include_deferred": True}
        try:
            self._send("POST", "/api/v2/pools", body, again=True)
        except ApiError as error:
            if error.status != 409:
                raise

    # -- DAGs and their runs -------------------------------------------------------------------------------------

    def dag(self, dag_id: str) -> dict[str, Any] | None:
        """The DAG, None while the DAG processor has not read it."""
        try:
            return self._get(f"/dags/{dag_id}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def pause(self, dag_id: str, paused: bool) -> None:
        self._patch(f"/dags/{dag_id}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: dict[str, Any], partition: str | None, note: str) -> str:
        """Start a run; its id. The id is chosen here, so that a request whose answer was lost can be sent again."""
        run_id = f"manual__{datetime.now(UTC).isoformat()}__{secrets.token_hex(4)}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf, "partition_key": partition, "note": note}
        try:
            self._send("POST", f"/api/v2/dags/{dag_id}/dagRuns", body, again=True)
        except ApiError as error:
            if error.status != 409:
                raise
        return run_id

    def runs(self, dag_id: str, **query: str) -> list[dict[str, Any]]:
        """The newest runs first, at most one page."""
        words = urllib.parse.urlencode({"order_by": "-run_after", "limit": PAGE, **query})
        return self._get(f"/dags/{dag_id}/dagRuns?{words}")["dag_runs"]

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return self._get(_run(dag_id, run_id))

    def fail_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Mark a run failed, and with it what still works on it."""
        self._patch(_run(dag_id, run_id), {"state": "failed", "note": note})

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        return list(self._pages(f"{_run(dag_id, run_id)}/taskInstances", "task_instances"))

    # -- one task instance ---------------------------------------------------------------------------------------

    def result(self, instance: dict[str, Any]) -> Any:
        """What the task returned, None when it returned nothing."""
        index = instance["map_index"]
        try:
            return self._get(f"{_task(instance)}/xcomEntries/return_value?map_index={index}&deserialize=true")["value"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def stored(self, instance: dict[str, Any], key: str) -> Any:
        """What the running task has put into its state store under `key`, None when nothing yet."""
        try:
            return self._get(f"{_task(instance)}/state-store/{key}?map_index={instance['map_index']}")["value"]
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def log(self, instance: dict[str, Any]) -> list[dict[str, Any]]:
        """The records of the log of a task instance's last try, oldest first: event, level, logger, error_detail, …"""
        path = f"{_task(instance)}/logs/{instance['try_number']}?map_index={instance['map_index']}&full_content=true"
        return [record for record in self._get(path)["content"] if isinstance(record, dict)]

    # -- HTTP ----------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> Any:
        return self._send("GET", f"/api/v2{path}")

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Any other request that makes something, sent once; `path` is below /api/v2."""
        return self._send("POST", f"/api/v2{path}", body)

    def _patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PATCH", f"/api/v2{path}", body)

    def _pages(self, path: str, key: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            page = self._get(f"{path}?limit={PAGE}&offset={offset}")
            yield from page[key]
            offset += PAGE
            if offset >= page["total_entries"]:
                return

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        token: bool = True,
        again: bool = False,
        fresh: bool = False,
        patience: float = PATIENCE,
    ) -> Any:
        """One request. What may be sent twice (a read, a change to a given state, a login, or `again`) is sent again
        for `patience` seconds while there is no answer, or the server fails: SQLite refuses a write at once when
        another process wrote since the same transaction first read, and Airflow then answers 500."""
        if token and self._token is None:
            login = {"username": self._user, "password": self._password}
            self._token = self._send("POST", "/auth/token", login, token=False)["access_token"]
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - our own URL
        deadline = time.monotonic() + (patience if again or method in ("GET", "PATCH") or not token else 0.0)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310
                    return json.load(response)
            except urllib.error.HTTPError as error:
                detail = error.read().decode(errors="replace")[:300]
                failure = ApiError(f"Airflow answered {error.code} to {method} {path}: {detail}", error.code)
                if error.code == 401 and token and not fresh:  # the login has run out; nothing was done
                    self._token = None
                    return self._send(method, path, body, again=again, fresh=True, patience=patience)
                if error.code < 500:
                    raise failure from None
            except (OSError, http.client.HTTPException) as error:
                failure = ApiError(f"Airflow at {self.url} gave no answer to {method} {path}: {error}")
            if time.monotonic() >= deadline:
                raise failure
            time.sleep(1.0)


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{urllib.parse.quote(run_id, safe='')}"


def _task(instance: dict[str, Any]) -> str:
    return f"{_run(instance['dag_id'], instance['dag_run_id'])}/taskInstances/{instance['task_id']}"
