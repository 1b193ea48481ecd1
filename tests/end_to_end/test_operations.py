"""What an operator does in the Airflow UI, through its API: a backfill, a refused gate, a start at a later stage.

Each on the embedded parts and on real ones: PostgreSQL, Redis and Celery, S3, a Dask scheduler with workers.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api
from tasks.corpus import s3_client
from tasks.corpus.artifact import read_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import exists, join, read_json
from tests.chaos.runs import english
from tests.end_to_end.real_parts import RealParts, until
from tests.end_to_end.runner import LIMIT, SNAPSHOT, Runner, small_landing

pytestmark = pytest.mark.slow

EARLIER, REFUSED = "2026-01-14", "2026-01-16"  # the days around SNAPSHOT
CURATE, TRAIN = "curate_corpus", "train_cascade_micro"


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three snapshots: a few documents, many, and none that any rule lets pass."""
    landing = small_landing(tmp_path_factory.mktemp("operations") / "landing")
    write_shard(landing / EARLIER / "web" / "part-000.jsonl.gz", [{"text": english(1)}])
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


@pytest.fixture(scope="module")
def backfilled(api: Api) -> dict[str, dict[str, Any]]:
    """Airflow's own backfill over the three days."""
    api.pause(CURATE, paused=False)
    dates = {"from_date": f"{EARLIER}T00:00:00Z", "to_date": f"{REFUSED}T23:59:59Z"}
    api.post("/backfills", {"dag_id": CURATE, **dates, "reprocess_behavior": "failed", "max_active_runs": 1})
    deadline = time.monotonic() + LIMIT
    while len(runs := api.runs(CURATE, run_type="backfill")) < 3:
        assert time.monotonic() < deadline, runs
        time.sleep(1.0)
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
