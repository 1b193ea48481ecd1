"""The main job on a deployment's parts, started by compose's own commands: does it end well, who is let in, what leaks.

PostgreSQL for metadata, Celery with Redis, an S3 server for corpus, models and what results are large, Dask by address.
The run is test_standalone.py's, which runs on the embedded parts, and is held to the same.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from distributed import Client

from plugins.inputs import cascade_dag_id
from plugins.local.run import CURATE, main_job
from plugins.local.session import Session
from plugins.local.terminal import Terminal
from tasks.corpus import s3_client
from tasks.corpus.registry import read_registry
from tasks.corpus.storage import join, open_store
from tasks.settings import Settings
from tasks.training.recipe import load_recipe
from tests.end_to_end.real_parts import AIRFLOW, RealParts, program, stop, until
from tests.end_to_end.runner import MICRO, SNAPSHOT, check_trained, small_landing
from tests.plugins.test_page import routes

pytestmark = pytest.mark.slow

TRAIN = cascade_dag_id("micro")
CHECKED = ("postgres", "redis", "dask-scheduler", "dask-worker", *AIRFLOW)  # moto stands in for the store, and has none


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealParts]:
    pytest.importorskip("celery", reason="Celery is not installed; `make test-full` does, from docker/requirements.txt")
    before, root = dict(os.environ), tmp_path_factory.mktemp("real")
    parts = RealParts(root)
    os.environ["AIRFLOW_HOME"] = str(root / "airflow")  # this process reads the page's routes
    try:
        api = parts.start(small_landing(root / "landing"))
        until(lambda: all(api.dag(dag_id) for dag_id in (CURATE, TRAIN)), what="the DAGs are read")
        yield parts
    finally:
        parts.end()
        os.environ.clear()
        os.environ.update(before)
        s3_client.client.cache_clear()


class Watching(Terminal):
    """Looks after the parts while it waits for the run: without one of them it would wait for ever."""

    def __init__(self, parts: RealParts) -> None:
        super().__init__()
        self.parts = parts

    def status(self, text: str) -> None:
        self.parts.all_work()
        super().status(text)


def test_the_main_job_on_the_parts_of_a_deployment(parts: RealParts, capsys: pytest.CaptureFixture[str]) -> None:
    config = Settings(home=parts.root / "home", data=parts.data, store=parts.store, recipe=str(MICRO))
    assert parts.api is not None
    session = Session(parts.api, parts.root, own=False)
    lines = main_job(session, config, load_recipe(config.recipe), SNAPSHOT, Watching(parts))
    print(*lines, sep="\n")
    check_trained(capsys.readouterr().out, parts.store)

    runs = f"SELECT dag_id, state FROM dag_run WHERE partition_key = '{SNAPSHOT}' ORDER BY 1"
    assert parts.asked(runs) == f"{CURATE}|success\n{TRAIN}|success"
    queues = f"SELECT DISTINCT queue FROM task_instance WHERE dag_id = '{TRAIN}' AND task_id ~ '(train|evaluate)$'"
    assert parts.asked(queues) == "accelerator"
    done = "SELECT DISTINCT status FROM celery_taskmeta"  # the last task's is written after the run has ended
    until(lambda: parts.asked(done) == "SUCCESS", 60, "Celery ran every task to its end")
    kept = len(list(open_store(join(parts.store, "xcom")).list()))  # of results of 2,000 bytes and more
    assert parts.asked("SELECT count(*) FROM xcom WHERE value::text LIKE '%athanor_xcom%'") == str(kept)
    assert parts.asked("SELECT count(*) FROM xcom WHERE length(value::text) > 4000") == "0", "large ones are there"
    (run,) = parts.asked(f"SELECT run_id FROM dag_run WHERE dag_id = '{TRAIN}'").splitlines()
    login = parts.token("viewer", parts.viewer)
    status, shown = parts.answer("GET", f"/athanor/page/api/runs/{TRAIN}/{quote(run)}", login)
    candidate = read_registry(parts.store, "micro")["candidate"]
    assert (status, candidate["uri"].encode() in shown) == (200, True)
    with Client(f"tcp://127.0.0.1:{parts.ports['dask-scheduler']}", timeout="60s") as client:
        (worked,) = client.run(lambda dask_worker: dask_worker.state.transition_counter).values()
    assert worked > 0, "Dask's own worker read the shards"


def test_a_large_result_goes_to_the_store(parts: RealParts) -> None:
    """By compose's own settings of a worker; those of the small recipe above are all small."""
    given = "'x' * 5000, key='k', task_id='t', dag_id='d', run_id='r'"
    code = f"from airflow.sdk.execution_time.xcom import XCom; print(XCom.serialize_value({given}))"
    environment = {**parts.environment("worker"), "_AIRFLOW_PROCESS_CONTEXT": "server"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    (kept,) = [entry.key for entry in open_store(join(parts.store, "xcom")).list() if entry.key.startswith("d/r/t/")]
    assert str({"athanor_xcom": kept}) in done.stdout, done.stderr


def test_every_part_is_well_by_the_health_check_of_compose(parts: RealParts) -> None:
    assert [part for part in CHECKED if not parts.is_well(part)] == []


def test_the_page_and_the_reports_ask_who_is_there_and_what_one_may(parts: RealParts) -> None:
    """401 without a login; 403 with one that this server has not signed, and for a decision by who may only look."""
    admin, viewer = parts.token("admin", parts.secrets["UI_PASSWORD"]), parts.token("viewer", parts.viewer)
    head, body, signature = admin.split(".")
    forged = f"{head}.{body}.{signature[::-1]}"
    reports = [("GET", f"/athanor/reports/{path}") for path in ("sft/0a", "sft/0a/data-docs", "evaluations/0a")]
    for method, path in [*((method, f"/athanor/page/{path}") for method, path in routes()), *reports]:
        assert [parts.answer(method, path, token)[0] for token in (None, forged)] == [401, 403], path
    decisions = [path for method, path in routes() if method != "GET"]
    assert len(decisions) == 2
    for path in decisions:
        assert parts.answer("POST", f"/athanor/page/{path}", viewer)[0] == 403, path
    for path in ("", "api/runs", "api/snapshots", "api/training", "api/gates", "api/releases"):
        assert parts.answer("GET", f"/athanor/page/{path}", viewer)[0] == 200, path


def test_no_secret_is_in_a_log_a_job_or_the_database(parts: RealParts) -> None:
    login = parts.environment("prepare")["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]
    files = [path for path in parts.root.rglob("*") if path.is_file() and str(path) != login]
    assert len([path for path in files if path.suffix == ".log"]) > len(CHECKED), "of parts, tasks and jobs"
    found = {str(path): path.read_bytes() for path in files}
    found["database"] = subprocess.run([program("pg_dump"), parts.database], check=True, capture_output=True).stdout
    for name, secret in {**parts.secrets, "viewer's password": parts.viewer}.items():
        assert [place for place, data in found.items() if secret.encode() in data] == [], name


def test_a_health_check_tells_that_a_part_is_gone(parts: RealParts) -> None:
    """The last test here: these parts have ended after it."""
    for part in ("worker", "scheduler", "dag-processor", "dask-worker"):
        stop(parts.processes.pop(part))
        assert not parts.is_well(part), part
