"""Following a DAG run: what finished, what works at the moment, what failed and why."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plugins.local.api import Api, ApiError
from plugins.local.terminal import Terminal
from plugins.local.wording import facts, job_progress, work_progress
from tasks.errors import AthanorError

POLL_SECONDS = 1.0
LOG_LINES = 30
ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
MARKS = {"success": "✓", "failed": "✗", "skipped": "-"}


class RunFailed(AthanorError):
    """A DAG run failed; the text names the tasks, their last log lines and the remedy."""


def follow(api: Api, dag_id: str, run_id: str, terminal: Terminal) -> dict[str, list[Any]]:
    """Print a run's progress until it ends; results of its tasks by task id (one per map index).

    Raises RunFailed.
    """
    shown: dict[tuple[str, int], str] = {}
    results: dict[str, list[Any]] = {}
    while True:
        state = api.run(dag_id, run_id)["state"]
        instances = api.task_instances(dag_id, run_id)
        for instance in sorted(instances, key=lambda item: item["end_date"] or ""):
            _show_change(api, instance, shown, results, terminal)
        if state == "success":
            return results
        if state == "failed":
            raise RunFailed(_explain(api, dag_id, instances))
        terminal.status(_at_work(api, dag_id, instances))
        time.sleep(POLL_SECONDS)


def _show_change(
    api: Api,
    instance: dict[str, Any],
    shown: dict[tuple[str, int], str],
    results: dict[str, list[Any]],
    terminal: Terminal,
) -> None:
    """One line when a task instance has ended or waits for its next try."""
    key, state = (instance["task_id"], instance["map_index"]), instance["state"]
    if shown.get(key) == state:
        return
    shown[key] = state
    if state == "up_for_retry":
        terminal.line(f"  ↻ {_name(instance)}: try {instance['try_number']} failed, waiting for the next")
    if state in MARKS:
        result = api.result(instance) if state == "success" else None
        results.setdefault(instance["task_id"], []).append(result)
        seconds = instance["duration"] or 0.0
        terminal.line(f"  {MARKS[state]} {_name(instance):34} {seconds:6.1f} s  {facts(result, seconds)}".rstrip())


def _at_work(api: Api, dag_id: str, instances: list[dict[str, Any]]) -> str:
    """What goes on, in one line."""
    working = [item for item in instances if item["state"] in ("running", "deferred")]
    if not working:
        return f"{dag_id}: scheduling"
    return "; ".join(f"{_name(item)} {_progress(api, item)}".strip() for item in working)


def _progress(api: Api, instance: dict[str, Any]) -> str:
    """How far a task is: from its training job's folder, or from what it stored."""
    if instance["task_id"].endswith(".train"):
        stored = api.stored(instance, "job")
        return job_progress(stored["job"]) if stored else ""
    if instance["map_index"] >= 0:
        seconds = datetime.now(UTC).timestamp() - datetime.fromisoformat(instance["start_date"]).timestamp()
        return work_progress(api.stored(instance, "progress"), seconds)
    return ""


def _explain(api: Api, dag_id: str, instances: list[dict[str, Any]]) -> str:
    """Which tasks failed, the last lines of their logs, and what to do."""
    failed = [item for item in instances if item["state"] == "failed"]
    parts = [f"{dag_id} failed: {', '.join(map(_name, failed)) or 'marked failed from outside'}"]
    for instance in failed[:3]:
        parts.append(f"\n{_name(instance)}, from its log:")
        try:
            parts += [f"  {line}" for line in complaints(api.log(instance))[-LOG_LINES:]]
        except ApiError as error:
            parts.append(f"  (no log: {error})")
        parts.append(_remedy(api, instance))
    return "\n".join(parts)


NOISE = ("py.warnings", "task.stderr")  # deprecations, and what libraries print on their own


def complaints(records: list[dict[str, Any]]) -> list[str]:
    """Warnings, errors and the exceptions behind them, as lines; everything when a log holds none of these."""
    lines: list[str] = []
    for record in records:
        if record.get("level") in ("warning", "error", "critical") and record.get("logger") not in NOISE:
            lines += str(record["event"]).splitlines()
            for error in record.get("error_detail") or []:
                lines += f"{error['exc_type']}: {error['exc_value']}".splitlines()
    return lines or [str(record.get("event", "")) for record in records]


def _remedy(api: Api, instance: dict[str, Any]) -> str:
    """What a person does next."""
    again = "then `make run` again: finished work is reused"
    if "gate" in instance["task_id"].split(".")[-1]:
        return f"remedy: the gate's report shows the rows that failed; repair the data or the contract, {again}"
    if instance["task_id"].endswith(".train"):
        stored = api.stored(instance, "job")
        log = f"{Path(stored['job']) / 'log.txt'}" if stored else "the task's log"
        return f"remedy: {log} holds the whole story; repair its cause, {again} (training resumes)"
    return f"remedy: repair what the message names, {again}"


def _name(instance: dict[str, Any]) -> str:
    group = instance.get("rendered_map_index") or (instance["map_index"] if instance["map_index"] >= 0 else None)
    return instance["task_id"] if group is None else f"{instance['task_id']}[{group}]"
