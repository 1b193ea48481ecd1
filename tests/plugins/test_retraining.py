"""Tasks of `watch_domains` and `retrain_domain` that are tried again: nothing is missed, nothing starts twice."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from plugins.retraining import StartAgainOperator, find_new, record_announced
from tasks.cascade.domains import look
from tasks.corpus.shards import write_shard
from tasks.settings import Settings

MOVED = {"moved": "another model has been released since", "released": "", "changed": False}


def test_a_delivery_is_announced_until_it_is_put_down_that_it_was(tmp_path: Path) -> None:
    config = Settings(home=tmp_path / "home", data=str(tmp_path / "landing"), store=str(tmp_path / "store"))
    assert find_new(config) == {}
    write_shard(tmp_path / "landing" / "domains" / "legal" / "a.jsonl", [{"messages": []}])
    found = find_new(config)
    assert found == {"legal": look("legal", config.data).hash}
    assert find_new(config) == found, "the event of the first look was lost with its task"
    record_announced(found, config)
    assert find_new(config) == {}


def rebased(run_id: str, parent: str, outcome: dict[str, Any]) -> DagRunTriggerException:
    """The run that the task of a run asks Airflow to start."""
    chosen = {"domain": "legal", "parent": {"hash": parent}}
    task = StartAgainOperator(task_id="rebase", trigger_dag_id="retrain_domain", outcome=outcome, chosen=chosen)
    params = {"rebases": 0, "reason": "new data", "again": False}
    with pytest.raises(DagRunTriggerException) as asked:
        task.execute({"params": params, "dag_run": SimpleNamespace(run_id=run_id)})  # type: ignore[typeddict-item]
    return asked.value


def test_a_rebase_that_is_tried_again_starts_no_second_run() -> None:
    first, again = (rebased("manual__1", "a" * 64, MOVED) for _ in range(2))
    assert first.dag_run_id == again.dag_run_id, "Airflow refuses a second run of one name"
    assert first.skip_when_already_exists, "which is no failure: the first one is at work"
    assert first.conf == again.conf and first.conf and first.conf["rebases"] == 1
    others = {rebased("manual__2", "a" * 64, MOVED).dag_run_id, rebased("manual__1", "b" * 64, MOVED).dag_run_id}
    assert first.dag_run_id not in others and len(others) == 2, "another run, and another parent, is another rebase"
    with pytest.raises(AirflowSkipException, match="it was released"):
        rebased("manual__1", "a" * 64, {**MOVED, "moved": ""})
