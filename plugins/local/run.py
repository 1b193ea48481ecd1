"""`make run`: the main job, from raw shards to a gated model, watched from the terminal. `make up`, `make down`."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from plugins.credentials import ENVIRONMENT as CREDENTIALS
from plugins.credentials import on_s3, use_connection_of
from plugins.inputs import cascade_dag_id, choose_snapshot, instructions_of, preferences_of
from plugins.local.airflow_home import prepare
from plugins.local.api import Api, ApiError
from plugins.local.follow import follow
from plugins.local.guardian import read_state
from plugins.local.lock import Held, hold
from plugins.local.machine import check_machine
from plugins.local.session import Session, attached, start_detached
from plugins.local.summary import summary
from plugins.local.terminal import Terminal
from plugins.local.wording import megabytes
from tasks.errors import AthanorError, DataError
from tasks.settings import Settings
from tasks.training.recipe import Recipe, load_recipe

CURATE = "curate_corpus"
EVENT_SECONDS = 180.0  # an event starts its run within a scheduler loop or two; a busy machine needs longer
NOTE = "started by make run"


def run(settings: Settings) -> int:
    """Harvest where there is no data, curate, train, sum up. Raises AthanorError when anything fails."""
    check_machine(settings.home)
    recipe = load_recipe(settings.recipe)
    terminal = Terminal()
    note = f"process {os.getpid()}, since {datetime.now():%H:%M:%S}"
    try:
        with hold(settings.home / "run.lock", note=note):
            return _run(settings, recipe, terminal)
    except Held as holder:
        raise AthanorError(f"another `make run` works in {settings.home} ({holder}); wait for it, or end it") from None


def _run(settings: Settings, recipe: Recipe, terminal: Terminal) -> int:
    train = cascade_dag_id(recipe.name)
    terminal.plain(f"data    {settings.data}\nstore   {settings.store}\nrecipe  {settings.recipe}\n")
    find_credentials(settings)
    harvest_documents(settings, terminal)
    snapshot, _ = choose_snapshot(settings.data, None)  # the user's folder may be misspelt: say so before anything long
    harvest_records(settings, terminal)
    if "preferences" in recipe.data:
        harvest_pairs(settings, terminal)
    with attached(settings, terminal, [CURATE, train]) as session:
        lines = main_job(session, settings, recipe, snapshot, terminal)
    terminal.plain("\n".join(["", *lines, ""]))
    terminal.line("done. `make up` opens the UI again")
    return 0


def main_job(session: Session, settings: Settings, recipe: Recipe, snapshot: str, terminal: Terminal) -> list[str]:
    """Curate the snapshot, train on it by the corpus' event, and sum up. Raises AthanorError when anything fails."""
    api, train = session.api, cascade_dag_id(recipe.name)
    with _unpaused(api, [train, CURATE]):
        earlier = {item["dag_run_id"] for item in api.runs(train)}
        curated = _watch(session, CURATE, api.trigger(CURATE, {"snapshot": snapshot}, snapshot, NOTE), terminal)
        trained = _watch(session, train, _await_event(api, train, earlier, snapshot, terminal), terminal)
    return summary(settings, snapshot, curated, trained, [stage.name for stage in recipe.stages])


def find_credentials(settings: Settings) -> None:
    """Those of the Airflow connection, where there is one: this process looks into the store, too."""
    folder, environment = prepare(settings)
    if on_s3(settings) and (CREDENTIALS in os.environ or (folder / "airflow.db").exists()):
        use_connection_of(environment)


def harvest_documents(settings: Settings, terminal: Terminal) -> None:
    """Fill the default landing zone from this machine; a user's own is left alone."""
    from tasks.sample.harvest import harvest_corpus

    sample = str(settings.home / "landing")
    if settings.data == sample:
        done = harvest_corpus(sample, on_progress=terminal.figures)
        what = f"{done['documents']:,} documents, {megabytes(done['bytes'])} from this machine"
        terminal.line(f"sample corpus: {what}{' (reused)' if done['reused'] else ''}")


def harvest_records(settings: Settings, terminal: Terminal) -> None:
    """Take instruction records from this machine where the user has none."""
    from tasks.sample.instructions import harvest_instructions

    try:
        instructions_of(settings)
    except DataError:
        done = harvest_instructions(str(settings.home / "landing"), on_progress=terminal.figures)
        terminal.line(f"sample instructions: {done['records']:,} records from this machine")


def harvest_pairs(settings: Settings, terminal: Terminal) -> None:
    """Make preference records from this machine where the user has none."""
    from tasks.sample.preferences import harvest_preferences

    try:
        preferences_of(settings)
    except DataError:
        done = harvest_preferences(str(settings.home / "landing"), on_progress=terminal.figures)
        terminal.line(f"sample preferences: {done['records']:,} pairs, synthetic: made by a rule, judged by nobody")


@contextmanager
def _unpaused(api: Api, dag_ids: list[str]) -> Iterator[None]:
    """The DAGs may run inside this block and are as before after it: `make run` is no schedule."""
    before = {dag_id: bool((api.dag(dag_id) or {}).get("is_paused", True)) for dag_id in dag_ids}
    for dag_id in dag_ids:
        api.pause(dag_id, paused=False)
    try:
        yield
    finally:
        with suppress(ApiError):  # Airflow itself may be what failed
            for dag_id, paused in before.items():
                api.pause(dag_id, paused)


def _watch(session: Session, dag_id: str, run_id: str, terminal: Terminal) -> dict[str, list[Any]]:
    """Follow a run; interrupted, mark it failed where Airflow lives on, which ends its training job."""
    terminal.line(f"{dag_id}  {session.api.url}/dags/{dag_id}/runs/{run_id}")
    try:
        return follow(session.api, dag_id, run_id, terminal)
    except (KeyboardInterrupt, SystemExit):
        if not session.own:
            with suppress(ApiError):
                session.api.fail_run(dag_id, run_id, "interrupted in the terminal")
        raise


def _await_event(api: Api, dag_id: str, earlier: set[str], snapshot: str, terminal: Terminal) -> str:
    """The run that the curated corpus' event starts; starting another would train the same thing twice."""
    deadline = time.monotonic() + EVENT_SECONDS
    while time.monotonic() < deadline:
        for item in api.runs(dag_id):
            if item["dag_run_id"] not in earlier and item["partition_key"] == snapshot:
                return item["dag_run_id"]
        terminal.status(f"{dag_id}: waiting for the event of the curated corpus")
        time.sleep(1.0)
    raise AthanorError(
        f"the curated corpus was announced, but {dag_id} did not start within {EVENT_SECONDS:.0f} s; "
        "`make up` and look at the asset curated_corpus"
    )


def up(settings: Settings) -> int:
    """Keep Airflow and its UI running in the background."""
    check_machine(settings.home)
    folder, _ = prepare(settings)
    state = read_state(folder)
    if state is not None:
        print(f"Airflow is up already at {state['url']}")
        return 0
    terminal = Terminal()
    session = start_detached(settings, terminal, [CURATE, cascade_dag_id(load_recipe(settings.recipe).name)])
    terminal.line(f"{session.api.url} stays up until `make down`; unpause a DAG there to schedule it")
    return 0


def down(settings: Settings) -> int:
    """End the Airflow that `up` started, its tasks and its training jobs."""
    folder: Path = settings.home / "airflow"
    state = read_state(folder) if folder.is_dir() else None
    if state is None:
        print("nothing is up")
        return 0
    guardian = psutil.Process(int(str(state["pid"])))
    guardian.send_signal(signal.SIGTERM)
    guardian.wait(timeout=60)
    print(f"{state['url']} is down")
    return 0
