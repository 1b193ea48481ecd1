"""The training operator and its trigger against real jobs; the gate operator against a real contract."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from plugins.operators import GateOperator, GateReportLink, JobLost, TrainStageOperator, log_tail
from plugins.triggers import TrainingJobTrigger, progress_line
from tasks.corpus.artifact import read_artifact
from tasks.training.job import Job

WAIT = 90.0  # seconds that a tiny tokenizer job may take on a busy machine


class Stored(dict[str, Any]):
    """The task's state store, as far as an operator uses it."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def operator(place: Any, **inputs: Any) -> TrainStageOperator:
    given = {"stages": ["tokenizer"], "corpus": place.corpus, "instructions": "", "parents": {}, **inputs}
    return TrainStageOperator(
        task_id="train", recipe=place.recipe, stage="tokenizer", inputs=given, upstream=[], poll_seconds=0.2
    )


def deferred(task: TrainStageOperator, stored: Stored) -> Any:
    from airflow.sdk.exceptions import TaskDeferred

    with pytest.raises(TaskDeferred) as deferral:
        task.execute({"task_state_store": stored})  # type: ignore[typeddict-item]
    return deferral.value


def fired(trigger: TrainingJobTrigger) -> dict[str, Any]:
    """The one event of a trigger."""

    async def first() -> Any:
        return await anext(aiter(trigger.run()))

    return asyncio.run(asyncio.wait_for(first(), WAIT)).payload


def test_stage_is_submitted_awaited_and_reused(place: Any) -> None:
    stored, task = Stored(), operator(place)
    deferral = deferred(task, stored)
    assert Path(stored["job"]["job"]).is_dir(), "the runner finds the job's folder in the state store"
    name, arguments = deferral.trigger.serialize()
    assert name == "plugins.triggers.TrainingJobTrigger"
    event = fired(TrainingJobTrigger(**arguments))
    assert fired(TrainingJobTrigger(**arguments)) == event, "a trigger may run twice"
    assert Job.load(event["job"]).status().state == "succeeded"
    result = operator(place).finish({}, event, **deferral.kwargs)  # type: ignore[typeddict-item]
    assert result["hash"] == read_artifact(result["artifact"]).hash
    assert result["reused"] is False
    json.dumps(result)
    again = operator(place).execute({"task_state_store": Stored()})  # type: ignore[typeddict-item]
    assert again == {**result, "reused": True}


def test_a_second_worker_re_attaches_to_the_running_job(place: Any) -> None:
    first, second = Stored(), Stored()
    deferral = deferred(operator(place), first)
    job = Job.load(first["job"]["job"])
    lease = job.lease()
    deferred(operator(place), second)
    assert second == first
    assert job.lease() == lease, "no second trainer was started"
    assert Job.load(fired(deferral.trigger)["job"]).status().state == "succeeded"


def test_killing_the_task_ends_the_job(place: Any) -> None:
    stored, task = Stored(), operator(place)
    deferral = deferred(task, stored)
    task.on_kill()
    event = fired(deferral.trigger)
    assert Job.load(event["job"]).status().state == "failed"
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="cancelled"):
        operator(place).finish({}, event, **deferral.kwargs)  # type: ignore[typeddict-item]


def test_a_person_who_clears_a_deferred_task_ends_the_job(place: Any) -> None:
    stored = Stored()
    trigger = deferred(operator(place), stored).trigger
    asyncio.run(trigger.on_kill())
    assert Job.load(stored["job"]["job"]).status().state == "failed"
    asyncio.run(trigger.on_kill())  # twice does no harm


def test_a_triggerer_that_restarts_leaves_the_job_alone(place: Any) -> None:
    stored = Stored()
    trigger = deferred(operator(place), stored).trigger
    asyncio.run(trigger.cleanup())
    assert Job.load(fired(trigger)["job"]).status().state == "succeeded"


def test_a_lost_job_is_retried_and_its_log_is_quoted(place: Any) -> None:
    stored = Stored()
    deferral = deferred(operator(place), stored)
    job = Job.load(stored["job"]["job"])
    lease = job.lease()
    assert lease is not None
    os.killpg(lease.pid, signal.SIGKILL)
    event = fired(deferral.trigger)
    assert job.status().state == "lost"
    with pytest.raises(JobLost, match=str(job.log)):
        operator(place).finish({}, event, **deferral.kwargs)  # type: ignore[typeddict-item]
    retry = deferred(operator(place), Stored())
    assert Job.load(fired(retry.trigger)["job"]).status().state == "succeeded", "the next try takes the job over"


def test_a_stage_outside_the_range_is_skipped(place: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    with pytest.raises(AirflowSkipException):
        operator(place, stages=["sft"]).execute({})  # type: ignore[typeddict-item]


def test_log_tail_quotes_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert "never written" in log_tail(log)
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    assert log_tail(log, lines=2) == f"last lines of {log}:\nline 98\nline 99"


def test_progress_in_words() -> None:
    assert progress_line(None) == "starting"
    assert progress_line({"step": 40, "loss": 5.12345, "ranks": [1]}) == "step 40, loss 5.123"


def gate(place: Any, corpus: str) -> GateOperator:
    return GateOperator(task_id="gate", contract="curated", subject={"corpus": corpus}, key="ab" * 32)


def test_gate_passes_and_its_report_is_kept_under_its_id(place: Any) -> None:
    task = gate(place, place.corpus)
    result = task.execute({})  # type: ignore[typeddict-item]
    assert result["verdict"] in ("passed", "warning")
    assert Path(result["report"]).is_file()
    link = GateReportLink().get_link(task, ti_key=None)
    assert link == f"/athanor/reports/curated/{'ab' * 8}"
    assert (Path(place.store) / "gates" / "curated" / ("ab" * 8) / "report.html").is_file()


def test_a_refused_gate_fails_without_retries(place: Any, tmp_path: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    task = gate(place, str(tmp_path / "nothing"))
    assert task.retries == 0
    with pytest.raises(AirflowFailException, match="refused"):
        task.execute({})  # type: ignore[typeddict-item]
    assert (Path(place.store) / "gates" / "curated" / ("ab" * 8) / "report.html").is_file()
