"""Runs of the project's DAGs, read from Airflow's database through its own models."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
from airflow.models.dagrun import DagRun
from airflow.models.task_state_store import TaskStateStoreModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from plugins.xcom import stored
from tasks.errors import AthanorError

OURS = ("curate_corpus", "train_cascade", "repair_shards", "retrain_domain")
ACCELERATOR = "accelerator"
WORST_FIRST = ("failed", "upstream_failed", "up_for_retry", "running", "deferred", "queued", "scheduled", None)
LOOKED_AT = 50  # runs looked through for the newest of a snapshot
FACTS = ("artifact", "hash", "verdict", "contract", "kept", "read", "left_out", "reused", "job")


def ours(dag_id: str) -> bool:
    return dag_id in OURS or dag_id.startswith("train_cascade_")


def read_runs(session: Session, readable: set[str], limit: int) -> list[dict[str, Any]]:
    """The newest runs that the user may read, with the state of each of their steps."""
    dag_ids = sorted(dag_id for dag_id in readable if ours(dag_id))
    query = select(DagRun).where(DagRun.dag_id.in_(dag_ids)).order_by(DagRun.run_after.desc()).limit(limit)
    runs = list(session.scalars(query))
    return [{**_run(run), "steps": _steps(session, run)} for run in runs]


def find_run(session: Session, dag_id: str, run_id: str) -> dict[str, Any] | None:
    """One run with its steps, and with their results, progress and links."""
    run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if run is None:
        return None
    results = _results(session, run)
    steps = _steps(session, run)
    for step in steps:
        step["facts"] = results.get(step["name"], {})
        step["progress"] = _progress(session, run, step["name"])
    return {**_run(run), "steps": steps, "conf": run.conf or {}}


def latest_group_task(session: Session, snapshot: str, group: str) -> dict[str, Any] | None:
    """The grid's square of a shard group: its newest task instance of `compute_signals`, by the name it shows."""
    query = (
        select(TaskInstance, DagRun)
        .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
        .where(
            DagRun.dag_id.in_(("curate_corpus", "repair_shards")),
            TaskInstance.task_id == "compute_signals",
            TaskInstance.rendered_map_index == group,  # type: ignore[arg-type]  # a column, though typed as text
        )
        .order_by(DagRun.run_after.desc())
        .limit(LOOKED_AT)
    )
    found = [instance for instance, run in session.execute(query) if _snapshot(run) == snapshot]
    if not found:
        return None
    instance = found[0]
    where = f"{grid(instance.dag_id, instance.run_id)}/tasks/compute_signals/mapped/{instance.map_index}"
    return {"state": instance.state, "url": where, "run_id": instance.run_id}


def grid(dag_id: str, run_id: str) -> str:
    """Where Airflow shows the run, below the server's root."""
    return f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


def _snapshot(run: DagRun) -> str | None:
    """The date that a run is about: its partition, else what its form says."""
    return run.partition_key or (run.conf or {}).get("snapshot")


def _run(run: DagRun) -> dict[str, Any]:
    return {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "state": str(run.state),
        "kind": str(run.run_type),
        "partition": _snapshot(run),
        "started": _time(run.start_date),
        "ended": _time(run.end_date),
        "seconds": _seconds(run.start_date, run.end_date),
        "by": run.triggering_user_name,
        "url": grid(run.dag_id, run.run_id),
    }


def _steps(session: Session, run: DagRun) -> list[dict[str, Any]]:
    """Steps in the order in which they began, those to come in that of the DAG.

    `cost` is worker seconds, and of these seconds on the accelerator.
    """
    columns = (
        TaskInstance.task_id,
        TaskInstance.state,
        TaskInstance.start_date,
        TaskInstance.end_date,
        TaskInstance.pool,
        TaskInstance.try_number,
        TaskInstance.map_index,
        TaskInstance.priority_weight,
    )
    rows = session.execute(select(*columns).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id))
    steps: dict[str, dict[str, Any]] = {}
    for task_id, state, start, end, pool, tries, map_index, weight in rows:
        new: dict[str, Any] = {"name": task_id, "states": Counter(), "start": None, "end": None, "worker": 0.0}
        step = steps.setdefault(task_id, {**new, "pool": pool, "weight": weight})
        step["states"][state] += 1
        step["tries"] = max(step.get("tries", 0), tries)
        step["mapped"] = map_index >= 0
        step["worker"] += _seconds(start, end) or 0.0
        step["start"] = min(filter(None, (step["start"], start)), default=None)
        step["end"] = max(filter(None, (step["end"], end)), default=None)
    return [_step(step) for step in sorted(steps.values(), key=_begun)]


def _begun(step: dict[str, Any]) -> tuple[datetime, int, str]:
    """By its beginning, then by what hangs on it: a task's weight grows with the tasks that follow it."""
    return _aware(step["start"]) or datetime.max.replace(tzinfo=UTC), -step["weight"], step["name"]


def _step(step: dict[str, Any]) -> dict[str, Any]:
    states = step["states"]
    state = next((name for name in WORST_FIRST if states.get(name)), None) or next(iter(states))
    active = state in ("running", "deferred", "up_for_retry")
    return {
        "name": step["name"],
        "state": None if state is None else str(state),
        "counts": {str(name): count for name, count in states.items()} if step["mapped"] else {},
        "tries": step["tries"],
        "started": _time(step["start"]),
        "seconds": _seconds(step["start"], None if active else step["end"]),
        "worker_seconds": round(step["worker"], 1),
        "accelerator_seconds": round(step["worker"], 1) if step["pool"] == ACCELERATOR else 0.0,
    }


def _results(session: Session, run: DagRun) -> dict[str, dict[str, Any]]:
    """Task → those facts of its result that a page shows; of a mapped task there are too many to."""
    query = select(XComModel.task_id, XComModel.value).where(
        XComModel.dag_id == run.dag_id,
        XComModel.run_id == run.run_id,
        XComModel.key == "return_value",
        XComModel.map_index == -1,
    )
    found = {}
    for row in session.execute(query):
        try:
            value = stored(XComModel.deserialize_value(row))
        except AthanorError:
            continue  # the store does not answer: a run is shown without this step's result
        if isinstance(value, dict):
            found[row.task_id] = {name: value[name] for name in FACTS if isinstance(value.get(name), int | str | float)}
    return found


def _progress(session: Session, run: DagRun, task_id: str) -> list[dict[str, Any]]:
    """What running tasks have said of themselves."""
    query = select(TaskStateStoreModel.map_index, TaskStateStoreModel.value).where(
        TaskStateStoreModel.dag_id == run.dag_id,
        TaskStateStoreModel.run_id == run.run_id,
        TaskStateStoreModel.task_id == task_id,
        TaskStateStoreModel.key == "progress",
    )
    return [{"index": index, "progress": orjson.loads(value)} for index, value in session.execute(query)]


def _aware(when: datetime | None) -> datetime | None:
    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def _time(when: datetime | None) -> str | None:
    found = _aware(when)
    return found.isoformat(timespec="seconds") if found else None


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    begun, ended = _aware(start), _aware(end)
    return round(((ended or datetime.now(UTC)) - begun).total_seconds(), 1) if begun else None
