"""A bad shard in Airflow: its group alone is red; replaced and cleared, only its signals are computed again."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api
from plugins.local.follow import complaints
from tasks.corpus.artifact import read_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import join
from tests.chaos.runs import SNAPSHOT, curate, english, tree
from tests.end_to_end.runner import LIMIT, Runner

pytestmark = pytest.mark.slow

SHARDS = 10  # two groups of five
CURATE = "curate_corpus"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        rows = [{"text": english(30 * shard + n), "id": f"{n}"} for n in range(4)]
        write_shard(tmp_path / "landing" / SNAPSHOT / "web" / f"{shard}.jsonl.zst", rows)
    return tmp_path / "landing"


@pytest.fixture
def runner(landing: Path, tmp_path: Path) -> Iterator[Runner]:
    """Airflow is up."""
    runner = Runner(tmp_path / "home", landing)
    up = runner.start("up")
    printed = runner.output(up)
    assert up.returncode == 0, printed
    guardian = psutil.Process(json.loads((runner.home / "airflow" / "guardian.json").read_text())["pid"])
    runner.seen |= {guardian, *guardian.children(recursive=True)}
    yield runner
    runner.output(runner.start("down"))
    assert runner.left() == []


def states(api: Api, run: str) -> dict[tuple[str, int], dict[str, Any]]:
    return {(item["task_id"], item["map_index"]): item for item in api.task_instances(CURATE, run)}


def until(api: Api, run: str, wanted: Any, *keys: tuple[str, int]) -> dict[tuple[str, int], dict[str, Any]]:
    """The run's task instances, once those with these keys are in the wanted states."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        found = states(api, run)
        if all(key in found and found[key]["state"] in wanted for key in keys):
            return found
        time.sleep(0.2)
    raise AssertionError({key: item["state"] for key, item in found.items()})


def ended(api: Api, run: str) -> str:
    deadline = time.monotonic() + LIMIT
    while (state := api.run(CURATE, run)["state"]) not in ("success", "failed"):
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
    return state


def test_its_group_alone_fails_and_is_mended_in_the_grid(runner: Runner, landing: Path, tmp_path: Path) -> None:
    curate(landing / SNAPSHOT, tmp_path / "calm")
    state = json.loads((runner.home / "airflow" / "guardian.json").read_text())
    api = Api(state["url"], "admin", json.loads((runner.home / "airflow" / "passwords.json").read_text())["admin"])
    victim = landing / SNAPSHOT / "web" / "7.jsonl.zst"
    whole = victim.read_bytes()

    api.pause(CURATE, paused=False)
    run = api.trigger(CURATE, {"snapshot": SNAPSHOT}, SNAPSHOT, "a shard breaks")
    until(api, run, ["success"], ("inventory", -1))
    victim.write_bytes(whole[: len(whole) // 2])  # as a copy that was made again and broke off; its group comes second
    assert ended(api, run) == "failed"
    before = states(api, run)
    assert before["compute_signals", 0]["state"] == "success"
    red = before["compute_signals", 1]
    assert (red["state"], red["try_number"], red["rendered_map_index"]) == ("failed", 1, "group-1")
    assert before["cluster_duplicates", -1]["state"] == "upstream_failed"
    said = "\n".join(complaints(api.log(red)))
    assert "1 of 5 shards of group-1 failed; mend the cause and clear this task alone" in said
    assert "web/7.jsonl.zst: changed since the inventory" in said

    victim.write_bytes(whole)
    cleared = {"dag_run_id": run, "task_ids": [["compute_signals", 1]], "include_downstream": True, "dry_run": False}
    api.post(f"/dags/{CURATE}/clearTaskInstances", {**cleared, "only_failed": False, "reset_dag_runs": True})
    assert ended(api, run) == "success", states(api, run)
    after = states(api, run)
    assert after["compute_signals", 0]["start_date"] == before["compute_signals", 0]["start_date"], (
        "it did not run again"
    )
    again = api.result(after["compute_signals", 1])
    assert (again["shards"], again["reused"]) == (5, 4), "only the failed shard's signals were computed"
    output = join(runner.store, "corpus", SNAPSHOT)
    assert tree(output) == tree(tmp_path / "calm")
    assert read_artifact(output).files == read_artifact(str(tmp_path / "calm")).files
