"""One Airflow on this machine: started and guarded, or the one that `make up` started."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plugins.local.airflow_home import USER, at_port, password, prepare
from plugins.local.api import Api
from plugins.local.guardian import BUSY, LOG, read_state
from plugins.local.ports import held_port, listens_below
from plugins.local.processes import adopt_orphans, end_descendants
from plugins.local.terminal import Terminal
from tasks.errors import AthanorError
from tasks.settings import Settings

START_SECONDS = 600.0  # a start takes half a minute; the first, on a busy machine, several
POOLS = {"accelerator": "one training job at a time; deferred tasks count, their trainers are at work"}
INTERRUPTED = "ended with the run that started it; clear it to go on, finished work is reused"


@dataclass
class Session:
    """A healthy Airflow."""

    api: Api
    folder: Path
    own: bool  # started by this process, and ended by it


@contextmanager
def attached(settings: Settings, terminal: Terminal, dag_ids: list[str]) -> Iterator[Session]:
    """Airflow for as long as this block runs; everything it started has ended when the block is left."""
    folder, environment = prepare(settings)
    state = read_state(folder)
    if state is not None:
        _same_settings(state, environment)
        terminal.line(f"using the Airflow that is up at {state['url']}")
        api = Api(str(state["url"]), USER, password(folder))
        yield Session(api, folder, own=False)
        return
    adopt_orphans()  # should the guardian itself be killed, its children become ours
    guardian, port = _spawn(settings, folder, environment, terminal, "--attached")
    try:
        api = _await_health(guardian, port, folder, terminal, dag_ids)
        yield Session(api, folder, own=True)
    finally:
        _end(guardian)


def start_detached(settings: Settings, terminal: Terminal, dag_ids: list[str]) -> Session:
    """Start Airflow under a guardian that stays when this process ends."""
    folder, environment = prepare(settings)
    guardian, port = _spawn(settings, folder, environment, terminal)
    try:
        api = _await_health(guardian, port, folder, terminal, dag_ids)
    except BaseException:
        guardian.terminate()
        raise
    return Session(api, folder, own=True)


def _spawn(
    settings: Settings, folder: Path, environment: dict[str, str], terminal: Terminal, *arguments: str
) -> "tuple[subprocess.Popen[bytes], int]":
    """Start the guardian, which holds the port from here on. It holds none of our streams: whoever reads `make up`'s
    output must see its end."""
    wished, named = settings.airflow_port, "airflow_port" in settings.model_fields_set
    with (folder / "guardian.log").open("wb") as log, held_port(wished, exactly=named) as port:
        if port.number != wished:
            terminal.line(f"port {wished} is in use; taking {port.number}")
        guardian = subprocess.Popen(
            [sys.executable, "-m", "plugins.local.guardian", str(folder), *arguments],
            stdin=subprocess.PIPE if "--attached" in arguments else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment | at_port(port.number),
            cwd=environment["PYTHONPATH"],
            pass_fds=port.descriptors,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the runner alone
        )
    return guardian, port.number


def _await_health(
    guardian: "subprocess.Popen[bytes]",
    port: int,
    folder: Path,
    terminal: Terminal,
    dag_ids: list[str],
) -> Api:
    """Wait until all parts report and the DAGs are read; tidy up after an interrupted run.

    No request is sent to a server that this guardian did not start: another's would be told our password.
    """
    url = at_port(port)["AIRFLOW__API__BASE_URL"]
    api = Api(url, USER, password(folder))
    deadline = time.monotonic() + START_SECONDS
    terminal.line("starting Airflow")
    while not (listens_below(port, guardian.pid) and api.healthy() and all(api.dag(dag_id) for dag_id in dag_ids)):
        code = guardian.poll()
        if code == BUSY:
            raise AthanorError(f"another Airflow still works in {folder}; wait, or end it with `make down`")
        if code is not None:
            lines = tail(folder / LOG) + tail(folder / "guardian.log")
            raise AthanorError(f"Airflow ended while it started; its last lines:\n{lines}")
        if time.monotonic() > deadline:
            raise AthanorError(_why_not_ready(api, folder, dag_ids))
        terminal.status("waiting for the scheduler, the DAG processor, the triggerer and the API server")
        time.sleep(0.5)
    _tidy(api, dag_ids)
    for name, reason in POOLS.items():
        api.ensure_pool(name, 1, reason)
    terminal.line(f"Airflow is ready at {url}  (user {USER}, password in {folder / 'passwords.json'})")
    return api


def _why_not_ready(api: Api, folder: Path, dag_ids: list[str]) -> str:
    if not api.healthy():
        return f"Airflow was not ready after {START_SECONDS:.0f} s; its last lines:\n{tail(folder / LOG)}"
    errors = "\n".join(f"{error['filename']}: {error['stack_trace']}" for error in api.import_errors())
    missing = ", ".join(dag_id for dag_id in dag_ids if api.dag(dag_id) is None)
    return f"no DAG {missing}; the DAG processor says:\n{errors or 'nothing'}"


def _tidy(api: Api, dag_ids: list[str]) -> None:
    """Runs that an earlier session left behind have lost their processes: mark them failed."""
    for dag_id in dag_ids:
        for run in api.runs(dag_id):
            if run["state"] in ("running", "queued"):
                api.pause(dag_id, paused=True)
                api.fail_run(dag_id, run["dag_run_id"], INTERRUPTED)


def _end(guardian: "subprocess.Popen[bytes]") -> None:
    """Close the pipe, wait for the guardian to end everything, then look that nothing is left."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything behind
    try:
        if guardian.stdin is not None:
            guardian.stdin.close()
        try:
            guardian.wait(timeout=45.0)
        except subprocess.TimeoutExpired:
            guardian.kill()
        end_descendants(grace=5.0)
    finally:
        signal.signal(signal.SIGINT, previous)


def _same_settings(state: dict[str, object], environment: dict[str, str]) -> None:
    wanted = {key: environment[key] for key in ("ATHANOR_DATA", "ATHANOR_STORE", "ATHANOR_RECIPE", "ATHANOR_CURATION")}
    for key, value in wanted.items():
        if state.get(key) != value:
            raise AthanorError(
                f"the Airflow that is up at {state['url']} uses {key}={state.get(key)}, this run wants {value}: "
                "end it with `make down` first"
            )


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log file."""
    if not log.exists():
        return f"({log} was never written)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
