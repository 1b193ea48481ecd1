"""Operators: one training stage, one gate. Both are thin: the work is in `tasks`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink, get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from plugins.notifier import AthanorNotifier
from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import join
from tasks.errors import AthanorError
from tasks.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tasks.training.job import Job
    from tasks.training.plan import StageSpec

LOG_TAIL = 25  # lines of the job's log that a failure quotes


class JobLost(AthanorError):
    """The job's process group is gone and left no exit record; the next try resumes from the last checkpoint."""


class PageLink(BaseOperatorLink):
    """The run on the Athanor page (plugins/page), with its curves, shards and artifacts."""

    name = "Athanor"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"/athanor/page/#/runs/{quote(ti_key.dag_id, safe='')}/{quote(ti_key.run_id, safe='')}"


class TrainOperator(BaseOperator):
    """Submit the job of a planned stage, wait deferred, seal the result.

    The job's key is the content hash of everything that goes in. A retry, a clear or a second run with the same inputs
    meets the same job folder: it re-attaches to a job at work and reuses a finished artifact. Returns
    {"stage", "kind", "key", "artifact", "hash", "job", "reused", "spec"}.

    :param spec: the planned stage, as JSON.
    """

    template_fields: Sequence[str] = ("spec",)
    operator_extra_links = (PageLink(),)
    ui_color = "#d9e8c5"

    def __init__(self, *, spec: Any = None, poll_seconds: float = 2.0, **kwargs: Any) -> None:
        super().__init__(**{"doc_md": "Train what was planned, or reuse it when it was trained.", **kwargs})
        self.spec = spec
        self.poll_seconds = poll_seconds
        self._job: Job | None = None

    def plan(self) -> "StageSpec":
        """What is to be trained."""
        from tasks.training.plan import StageSpec

        return StageSpec.model_validate(self.spec)

    def execute(self, context: "Context") -> dict[str, Any]:
        from tasks.training.job import submit

        spec = self.plan()
        if spec.finished:
            self.log.info("the same inputs were trained before; reusing %s", spec.artifact)
            return self._result(spec, reused=True)
        self._job = submit(spec)
        context["task_state_store"].set("job", {"job": spec.job, "stage": spec.stage, "key": spec.key})
        self.log.info("job %s works in %s", spec.key, spec.job)
        if self._job.status().state != "running":
            return self.finish(context, {}, spec.model_dump(mode="json"))
        from plugins.triggers import TrainingJobTrigger

        self.defer(
            trigger=TrainingJobTrigger(spec.job, self.poll_seconds),
            method_name="finish",
            kwargs={"spec": spec.model_dump(mode="json")},
            timeout=self.execution_timeout,
        )

    def finish(self, context: "Context", event: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        """Called with the trigger's event; believes the job folder, not the event, which may come twice or late."""
        from tasks.training.job import Job
        from tasks.training.plan import StageSpec

        planned = StageSpec.model_validate(spec)
        job = Job.load(planned.job)
        status = job.status()
        if status.state == "succeeded":
            return self._result(planned, reused=False)
        words = f"stage '{planned.stage}' {status.state}: {status.message}\n{log_tail(job.log)}"
        if status.state == "failed":
            raise AirflowFailException(words)
        raise JobLost(words)

    def on_kill(self) -> None:
        """Killed while this process still held the task: end the job's process group."""
        if self._job is not None:
            self._job.cancel()

    def _result(self, spec: "StageSpec", *, reused: bool) -> dict[str, Any]:
        return {
            "stage": spec.stage,
            "kind": spec.kind,
            "key": spec.key,
            "artifact": spec.artifact,
            "hash": read_artifact(spec.artifact).hash,
            "job": spec.job,
            "reused": reused,
            "spec": spec.model_dump(mode="json"),
        }


class TrainStageOperator(TrainOperator):
    """A stage of a recipe, planned when the task runs.

    :param inputs: the result of `choose_inputs`; a stage outside its range is skipped.
    :param upstream: results of the earlier stages' training tasks (None where skipped), parents by stage name.
    """

    template_fields: Sequence[str] = ("inputs", "upstream")

    def __init__(self, *, recipe: str, stage: str, inputs: Any, upstream: list[Any], **kwargs: Any) -> None:
        super().__init__(**{"doc_md": f"Train the stage *{stage}*, or reuse it when it was trained.", **kwargs})
        self.recipe, self.stage = recipe, stage
        self.inputs, self.upstream = inputs, upstream

    def plan(self) -> "StageSpec":
        if self.stage not in self.inputs["stages"]:
            raise AirflowSkipException(f"stage '{self.stage}' is outside the range that this run was asked for")
        from tasks.training.plan import plan_stage

        config = settings()
        trained = {result["stage"]: result["artifact"] for result in self.upstream if result}
        return plan_stage(
            self.recipe,
            self.stage,
            store=config.store,
            home=str(config.home),
            corpus=self.inputs["corpus"],
            instructions=self.inputs["instructions"],
            preferences=self.inputs.get("preferences", ""),
            parents={**self.inputs["parents"], **trained},
        )


class StageReportLink(BaseOperatorLink):
    """The report of a trained stage: curves, figures before and after, samples."""

    name = "Training report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"/athanor/reports/evaluations/{operator.trained['hash']}"


class EvaluateOperator(BaseOperator):
    """Measure an artifact on held-out data; metrics.json in the store is what its gate reads.

    :param trained: result of the training.
    """

    template_fields: Sequence[str] = ("trained",)
    operator_extra_links = (StageReportLink(), PageLink())
    ui_color = "#d9e8c5"

    def __init__(self, *, trained: Any, **kwargs: Any) -> None:
        words = "Measure the artifact on held-out data, before and after; the report is one click away."
        super().__init__(**{"doc_md": words, "multiple_outputs": True, **kwargs})
        self.trained = trained

    def execute(self, context: "Context") -> dict[str, Any]:
        from tasks.evaluation.report import report_uri
        from tasks.evaluation.stages import evaluate_stage
        from tasks.training.plan import StageSpec

        metrics, store = evaluate_stage(StageSpec.model_validate(self.trained["spec"])), settings().store
        where = join(store, "evaluations", self.trained["hash"], "metrics.json")
        return {
            "metrics": {key: value for key, value in metrics.items() if isinstance(value, int | float | str)},
            "subject": {"metrics": where, "tokens": self.trained["artifact"]},
            "hash": self.trained["hash"],
            "report": report_uri(store, self.trained["hash"]),
        }


class GateReportLink(BaseOperatorLink):
    """The gate's report, served by id behind the UI's login (plugins/reports.py)."""

    name = "Gate report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"/athanor/reports/{report_id(operator.contract, operator.key)}"


class GateOperator(BaseOperator):
    """Hold a subject against a contract of `data_contracts`; a refusal fails the task at once, without retries.

    :param contract: name of the contract.
    :param subject: URIs that the contract reads, by name.
    :param key: hash of the subject; the report is kept under it.
    """

    template_fields: Sequence[str] = ("contract", "subject", "key")
    operator_extra_links = (GateReportLink(), PageLink())
    ui_color = "#f5e0b7"

    def __init__(self, *, contract: str, subject: Any, key: Any, **kwargs: Any) -> None:
        words = f"Hold the data against `data_contracts/{contract}.yaml`; the report is one click away."
        super().__init__(**{"retries": 0, "doc_md": words, **kwargs})
        self.contract, self.subject, self.key = contract, subject, key

    def execute(self, context: "Context") -> dict[str, Any]:
        from tasks.gates.gate import REPORT, GateRefused, require, run_gate, words

        folder = join(settings().store, "gates", report_id(self.contract, self.key))
        result = run_gate(self.contract, self.subject, folder)
        self.log.info("%s: %s; report in %s", self.contract, result.verdict, folder)
        for failure in result.failures:
            self.log.warning("%s", words(failure))
        try:
            require(result)
        except GateRefused as refusal:
            raise AirflowFailException(str(refusal)) from None
        if result.verdict == "warning":
            said = "; ".join(words(failure) for failure in result.failures)
            AthanorNotifier("gate warned", f"gate '{self.contract}': {said}").notify(context)
        return {"contract": self.contract, "verdict": result.verdict, "report": join(folder, REPORT)}


def progress_reporter(seconds: float = 1.0) -> Callable[[dict[str, Any]], None]:
    """A callback that puts the running task's progress where UI and runner read it (its state store), at most once
    in `seconds`."""
    store, reported_at = get_current_context()["task_state_store"], 0.0

    def report(progress: dict[str, Any]) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= seconds:
            reported_at = time.monotonic()
            store.set("progress", progress)

    return report


def report_id(contract: str, key: str) -> str:
    """`<contract>/<first 16 digits of the subject's hash>`."""
    return f"{contract}/{key[:16]}"


def log_tail(log: Path, lines: int = LOG_TAIL) -> str:
    """The last lines of a job's log, headed by where the whole of it is."""
    if not log.exists():
        return f"({log} was never written)"
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join([f"last lines of {log}:", *tail])
