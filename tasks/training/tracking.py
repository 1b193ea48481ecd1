"""Lines of progress told to TensorBoard, always, and to MLflow, where MLFLOW_TRACKING_URI names a server or a store.

`progress.jsonl` stays the truth: what fails here never fails a run, it is an event and ends the telling.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import ConfigError
from tasks.training.context import Context

FOLDER = "tensorboard"  # in the job's folder; `tensorboard --logdir .athanor/jobs` shows all jobs
EXPERIMENT = "athanor"
EVERY = 5.0  # seconds between two messages to MLflow
PLACE = ("step", "steps")  # of a line, and no figure of it


def scalars(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The figures of a line of progress by name; those by source or category as name/source."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name not in PLACE:
            yield prefix + name, float(value)


class Tracker(Protocol):
    """Something that figures are told to."""

    def log(self, line: Mapping[str, Any]) -> None: ...

    def rewind(self, step: int) -> None:
        """Steps after `step` are about to be taken again."""

    def close(self, state: str) -> None: ...


class TensorBoard:
    """Event files. Steps that are taken again, by a trainer that was killed or after a spike, replace what was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def log(self, line: Mapping[str, Any]) -> None:
        from tensorboardX import SummaryWriter

        if self._writer is None:
            before = len(list(self.folder.glob("events.*")))  # a file's name holds no more than the second
            self._writer = SummaryWriter(str(self.folder), purge_step=line["step"], filename_suffix=f".{before:04d}")
        for name, value in scalars(line):
            self._writer.add_scalar(name, value, line["step"])

    def rewind(self, step: int) -> None:
        self.close("")

    def close(self, state: str) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Mlflow:
    """One run of MLflow a job, found again by the job's key. Lines are sent together, every few seconds.

    Raises ConfigError where mlflow is not installed.
    """

    def __init__(self, context: Context) -> None:
        # Before mlflow is read: a server that does not answer must not hold training up for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        try:
            from mlflow import MlflowClient
        except ImportError:
            raise ConfigError(
                "MLFLOW_TRACKING_URI is set, but mlflow is not installed; `pip install -r requirements-mlflow.txt`, or "
                "unset the variable"
            ) from None
        self.client = MlflowClient()
        known = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self.client.create_experiment(EXPERIMENT)
        spec, tag = context.spec, f"tags.`athanor.key` = '{context.spec.key}'"
        found = self.client.search_runs([experiment], tag, max_results=1)
        if found:
            self.run = found[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
        else:
            tags = {"athanor.key": spec.key, "athanor.recipe": spec.recipe, "athanor.stage": spec.stage}
            tags |= {f"athanor.parent.{role}": item.hash for role, item in spec.parents.items()}
            name = f"{spec.recipe} {spec.stage} {spec.key[:8]}"
            self.run = self.client.create_run(experiment, tags=tags, run_name=name).info.run_id
            for key, value in flat(spec.config.model_dump()).items():
                self.client.log_param(self.run, key, value)
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def log(self, line: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now, line["step"]) for name, value in scalars(line)]
        if time.monotonic() - self._sent >= EVERY:
            self._send()

    def rewind(self, step: int) -> None:
        self._waiting = [metric for metric in self._waiting if metric.step <= step]

    def close(self, state: str) -> None:
        self._send()
        self.client.set_terminated(self.run, state)

    def _send(self) -> None:
        while self._waiting:
            part, self._waiting = self._waiting[:1000], self._waiting[1000:]  # the most of one request
            self.client.log_batch(self.run, metrics=part)
        self._sent = time.monotonic()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A configuration as dotted keys and short texts."""
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: str(value)[:500]}
    return found


class Trackers:
    """All that is told to, on the first rank; on the others nothing is."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trackers: list[Tracker] = []
        if context.first:
            self.trackers.append(TensorBoard(context.job.folder / FOLDER))
            if os.environ.get("MLFLOW_TRACKING_URI"):
                self._guarded(lambda: self.trackers.append(Mlflow(context)), "MLflow")

    def log(self, line: Mapping[str, Any]) -> None:
        self._each(lambda tracker: tracker.log(line))

    def rewind(self, step: int) -> None:
        self._each(lambda tracker: tracker.rewind(step))

    def close(self, state: str) -> None:
        self._each(lambda tracker: tracker.close(state))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        self.trackers = [
            tracker for tracker in self.trackers if self._guarded(partial(tell, tracker), type(tracker).__name__)
        ]

    def _guarded(self, act: Callable[[], None], name: str) -> bool:
        """Whether it went well. What a foreign library raises is an event; a ConfigError is for the user to mend."""
        try:
            act()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a server that is down must not end a training run
            self.context.event("tracking_failed", tracker=name, why=f"{type(error).__name__}: {error}"[:300])
            return False
        return True


@contextmanager
def tracked(context: Context) -> Iterator[Trackers]:
    """Trackers of a run, closed when it has ended, well or not."""
    trackers = Trackers(context)
    try:
        yield trackers
    except BaseException:
        trackers.close("FAILED")
        raise
    trackers.close("FINISHED")
