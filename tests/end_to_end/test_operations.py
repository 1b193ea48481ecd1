"""What an operator does in the Airflow UI, through its API: backfills, also a cancelled one; a refused gate; a start at
a later stage; every task cleared.

Each on the embedded parts and on real ones: PostgreSQL, Redis and Celery, S3, a Dask scheduler with workers.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from plugins.local.api import Api, ApiError
from tasks.corpus import s3_client
from tasks.corpus.artifact import read_artifact
from tasks.corpus.manifest import SHARDS_PER_GROUP
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import exists, join, read_json
from tests.chaos.runs import english
from tests.end_to_end.real_parts import RealParts, until
from tests.end_to_end.runner import LIMIT, SNAPSHOT, Runner, small_landing

pytestmark = pytest.mark.slow

EARLIER, REFUSED = "2026-01-14", "2026-01-16"  # the days around SNAPSHOT
AT_WORK, WAITING = "2026-02-01", "2026-02-02"  # of the backfill that is cancelled; nothing landed on the first
CURATE, TRAIN = "curate_corpus", "train_cascade_micro"
FORMS: dict[str, dict[str, Any]] = {  # of runs that are cleared before they have begun
    TRAIN: {},
    "repair_shards": {"snapshot": SNAPSHOT, "reason": "to be cleared"},
    "retrain_domain": {"domain": "legal"},
    "watch_domains": {},
}


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four snapshots: many documents, none that any rule lets pass, few, and few in two groups."""
    landing = small_landing(tmp_path_factory.mktemp("operations") / "landing")
    for day, shards in ((EARLIER, 1), (WAITING, SHARDS_PER_GROUP + 1)):
        for number in range(shards):
            text = english(int(day[-2:]) * 100 + number)
            write_shard(landing / day / "web" / f"part-{number:03}.jsonl.gz", [{"text": text}])
    write_shard(landing / REFUSED / "junk" / "part-000.jsonl.gz", [{"text": "x"}, {"text": "yy"}])
    return landing


@pytest.fixture(scope="module", params=["embedded", "real"])
def runner(request: pytest.FixtureRequest, landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Airflow is up: on one machine's embedded parts, or on those of docker/compose.yaml."""
    root = tmp_path_factory.mktemp(request.param)
    yield from (embedded if request.param == "embedded" else real)(root, landing)


def embedded(root: Path, landing: Path) -> Iterator[Runner]:
    runner = Runner(root / "home", landing)
    up = runner.start("up")
    printed = runner.output(up)
    assert up.returncode == 0, printed
    state = json.loads((runner.home / "airflow" / "guardian.json").read_text())
    runner.seen |= {psutil.Process(state["pid"]), *psutil.Process(state["pid"]).children(recursive=True)}
    secret = json.loads((runner.home / "airflow" / "passwords.json").read_text())["admin"]
    runner.api = Api(state["url"], "admin", secret)
    yield runner
    runner.output(runner.start("down"))
    for process in runner.seen:
        if process.is_running():
            process.kill()


def real(root: Path, landing: Path) -> Iterator[RealParts]:
    before = dict(os.environ)
    runner = RealParts(root)
    try:
        api = runner.api = runner.start(landing)
        until(lambda: all(api.dag(dag_id) for dag_id in (CURATE, TRAIN)))
        yield runner
    finally:
        runner.end()
        os.environ.clear()
        os.environ.update(before)
        s3_client.client.cache_clear()


@pytest.fixture(scope="module")
def api(runner: Any) -> Api:
    return runner.api


def ended(api: Api, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, Any]]:
    """The runs by partition key, once all have ended."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        runs = [api.run(dag_id, run_id) for run_id in run_ids]
        if all(run["state"] in ("success", "failed") for run in runs):
            return {run["partition_key"]: run for run in runs}
        time.sleep(2.0)
    raise AssertionError([(run["dag_run_id"], run["state"]) for run in runs])


def states(api: Api, run: dict[str, Any]) -> dict[str, str]:
    return {item["task_id"]: item["state"] for item in api.task_instances(run["dag_id"], run["dag_run_id"])}


def backfill(api: Api, first: str, last: str, behaviour: str) -> list[dict[str, Any]]:
    """The runs that a new backfill over these days has made, one a day at most."""
    dates = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T23:59:59Z"}
    body = {"dag_id": CURATE, **dates, "reprocess_behavior": behaviour, "max_active_runs": 1}
    known = {run["dag_run_id"] for run in api.runs(CURATE)}

    def new() -> list[dict[str, Any]]:
        return [run for run in api.runs(CURATE, run_type="backfill") if run["dag_run_id"] not in known]

    def made() -> bool:
        with suppress(ApiError):  # 409: the one before is not closed yet; 500: SQLite was busy, and it may be there
            api.post("/backfills", body)
            return True
        return bool(new())

    until(made, LIMIT)
    until(new)
    return new()


@pytest.fixture(scope="module")
def backfilled(api: Api) -> dict[str, dict[str, Any]]:
    """Airflow's own backfill over three days."""
    api.pause(CURATE, paused=False)
    runs = backfill(api, EARLIER, REFUSED, "failed")
    assert len(runs) == 3
    return ended(api, CURATE, [run["dag_run_id"] for run in runs])


def test_a_range_of_dates_is_backfilled(runner: Any, backfilled: dict[str, dict[str, Any]]) -> None:
    assert {key: run["state"] for key, run in backfilled.items()} == {
        EARLIER: "success",
        SNAPSHOT: "success",
        REFUSED: "failed",
    }
    for date, least in ((EARLIER, 1), (SNAPSHOT, 300)):
        report = read_json(join(runner.store, "corpus", date, "report.json"))
        assert report["read"] == report["kept"] + report["dropped"] + report["quarantined"] >= least
        assert read_artifact(join(runner.store, "corpus", date)).kind == "corpus"


def test_a_refused_gate_stops_what_follows(runner: Any, api: Api, backfilled: dict[str, dict[str, Any]]) -> None:
    found = states(api, backfilled[REFUSED])
    assert (found["publish"], found["gate"], found["announce"]) == ("success", "failed", "upstream_failed")
    gate = next(
        item for item in api.task_instances(CURATE, backfilled[REFUSED]["dag_run_id"]) if item["task_id"] == "gate"
    )
    assert gate["try_number"] == 1, "what the gate read has not changed: no retry"
    said = json.dumps(api.log(gate))
    assert "At least one document was kept" in said


def test_a_run_may_start_at_a_later_stage(runner: Any, api: Api, backfilled: dict[str, dict[str, Any]]) -> None:
    assert backfilled[SNAPSHOT]["state"] == "success"
    corpus = join(runner.store, "corpus", SNAPSHOT)
    api.pause(TRAIN, paused=False)
    first = api.trigger(TRAIN, {"corpus": corpus, "last_stage": "tokenizer"}, None, "the first stage alone")
    (run,) = ended(api, TRAIN, [first]).values()
    assert run["state"] == "success"
    found = states(api, run)
    assert (found["tokenizer.gate"], found["pretrain.train"], found["set_candidate"]) == (
        "success",
        "skipped",
        "skipped",
    )
    conf = {"corpus": corpus, "first_stage": "pretrain", "last_stage": "pretrain"}
    (run,) = ended(api, TRAIN, [api.trigger(TRAIN, conf, None, "the second stage alone")]).values()
    found = states(api, run)
    assert run["state"] == "success", found
    assert (found["tokenizer.train"], found["pretrain.gate"], found["sft.train"]) == ("skipped", "success", "skipped")
    assert not exists(join(runner.store, "registry", "micro.json")), "only a run to the last stage sets a candidate"
    unpaused = json.dumps([item["partition_key"] for item in api.runs(TRAIN)])
    assert REFUSED not in unpaused, "training never starts on data that a gate refused"


@pytest.fixture(scope="module")
def taken_up(runner: Any, api: Api) -> dict[str, dict[str, Any]]:
    """Runs of a backfill that was cancelled and taken up again, as the runbook says; the second has two groups."""
    api.pause(CURATE, paused=False)
    days = {run["partition_key"]: run["dag_run_id"] for run in backfill(api, AT_WORK, WAITING, "none")}
    until(lambda: api.run(CURATE, days[AT_WORK])["state"] == "running")
    (number,) = [b["id"] for b in api._get(f"/backfills?dag_id={CURATE}")["backfills"] if not b["completed_at"]]
    until(lambda: cancelled(api, number))
    assert api.run(CURATE, days[WAITING])["state"] == "failed", "it is not to begin"
    first = ended(api, CURATE, [days[AT_WORK]])[AT_WORK]
    assert first["state"] == "success", "a run at work goes on"

    path = f"/api/v2/dags/{CURATE}/dagRuns/{quote(days[WAITING], safe='')}/clear"
    api._send("POST", path, {"dry_run": False, "only_failed": False}, again=True)
    time.sleep(20)  # four rounds of the scheduler and more, with nothing else to start
    assert api.run(CURATE, days[WAITING])["state"] == "queued", "clearing leads nowhere"
    with pytest.raises(ApiError) as refused:
        api._send("PUT", f"/api/v2/backfills/{number}/unpause")
    assert refused.value.status == 409, "a cancelled backfill stays as it is"
    api.fail_run(CURATE, days[WAITING], "its backfill was cancelled")

    (later,) = backfill(api, AT_WORK, WAITING, "failed")
    return {AT_WORK: first, **ended(api, CURATE, [later["dag_run_id"]])}


def test_a_cancelled_backfill_is_taken_up_again(runner: Any, api: Api, taken_up: dict[str, dict[str, Any]]) -> None:
    first = taken_up[AT_WORK]
    assert taken_up[WAITING]["state"] == "success"
    assert api.run(CURATE, first["dag_run_id"])["end_date"] == first["end_date"], "what was done is left alone"
    assert read_artifact(join(runner.store, "corpus", WAITING)).kind == "corpus"


def cancelled(api: Api, number: int) -> bool:
    with suppress(ApiError):  # 500 while SQLite is busy; 409 once it is cancelled
        api._send("PUT", f"/api/v2/backfills/{number}/cancel")
    return api._get(f"/backfills/{number}")["completed_at"] is not None


def clear(api: Api, run: dict[str, Any], task: str | list[Any]) -> int:
    """Clear a task, or one square of it, with all before and after it; how many squares that were.

    Asked again for ten seconds, in which SQLite may be busy: what Airflow cannot do it cannot do then either.
    """
    asked = {"dag_run_id": run["dag_run_id"], "task_ids": [task], "only_failed": False, "reset_dag_runs": True}
    around = {"include_upstream": True, "include_downstream": True, "dry_run": False}
    path = f"/api/v2/dags/{run['dag_id']}/clearTaskInstances"
    return api._send("POST", path, {**asked, **around}, again=True, patience=10.0)["total_entries"]


def test_every_task_is_cleared_with_what_is_before_and_after_it(
    runner: Any, api: Api, taken_up: dict[str, dict[str, Any]]
) -> None:
    """Each alone and, where it is mapped, one square of it; then the run is done again, and comes to the same."""
    run, corpus = taken_up[WAITING], join(runner.store, "corpus", WAITING)
    before = read_artifact(corpus)
    for dag_id in (CURATE, TRAIN):  # what is announced again is not to be trained
        api.pause(dag_id, paused=True)
    instances = api.task_instances(CURATE, run["dag_run_id"])
    assert [item["map_index"] for item in instances if item["task_id"] == "compute_signals"] == [0, 1]
    for item in instances:
        square = [[item["task_id"], item["map_index"]]] if item["map_index"] >= 0 else []
        for task in [item["task_id"], *square]:
            assert clear(api, run, task) >= len({other["task_id"] for other in instances}), task
    api.pause(CURATE, paused=False)
    until(lambda: api.run(CURATE, run["dag_run_id"])["state"] in ("success", "failed"), LIMIT)
    found = states(api, run)
    assert set(found.values()) == {"success"}, found
    assert read_artifact(corpus).hash == before.hash, "what was finished is recognised"


@pytest.mark.parametrize("dag_id", FORMS)
def test_tasks_that_have_not_begun_are_cleared_too(api: Api, dag_id: str) -> None:
    """Before its groups are known, a mapped task is one square."""
    until(lambda: api.dag(dag_id))
    api.pause(dag_id, paused=True)
    run = api.run(dag_id, api.trigger(dag_id, FORMS[dag_id], None, "to be cleared"))
    tasks = [item["task_id"] for item in api.task_instances(dag_id, run["dag_run_id"])]
    assert tasks
    for task in tasks:
        assert clear(api, run, task) >= 1, task
    api.fail_run(dag_id, run["dag_run_id"], "cleared")
    assert api.run(dag_id, run["dag_run_id"])["state"] == "failed"
