"""Figures told to TensorBoard and MLflow, read back from what these wrote."""

import builtins
import importlib.util
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.storage import LocalStore, to_json
from tasks.errors import ConfigError
from tasks.training.context import Context
from tasks.training.job import Job, Lease
from tasks.training.plan import StageSpec
from tasks.training.recipe import Optimizer, PretrainStage
from tasks.training.tracking import FOLDER, TensorBoard, Trackers, scalars, tracked

CONFIG = PretrainStage(name="p", kind="pretrain", steps=3, optimizer=Optimizer(learning_rate=0.01))


def line(step: int, loss: float) -> dict[str, Any]:
    return {"stage": "p", "step": step, "steps": 3, "loss": loss, "note": "no figure", "weights": {"code": 0.25}}


@pytest.fixture
def context(tmp_path) -> Context:
    where = {"store": str(tmp_path), "artifact": str(tmp_path / "artifact"), "job": str(tmp_path / "job")}
    spec = StageSpec(recipe="r", stage="p", kind="pretrain", key="k" * 32, config=CONFIG, parents={}, data={}, **where)
    files = LocalStore(tmp_path / "job")
    files.write("spec.json", to_json(spec.model_dump(mode="json")))
    files.write("lease.json", to_json(Lease(token=1, host="here", pid=1, started=0.0).model_dump()))
    return Context(Job(spec.job), spec, token=1, rank=0, supervisor=os.getppid())


def events(folder: Path) -> Iterator[Any]:
    """TensorBoard's events in the order of files: records of length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(folder.glob("events.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack("<Q", data[at : at + 8])
            yield Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4


def test_figures_are_numbers_alone_with_those_by_name():
    assert dict(scalars(line(2, 1.5))) == {"loss": 1.5, "weights/code": 0.25}


def test_tensorboard_shows_every_step_once(tmp_path):
    board = TensorBoard(tmp_path)
    for step, loss in ((1, 5.0), (2, 4.0), (3, 99.0)):
        board.log(line(step, loss))
    board.rewind(2)
    board.log(line(3, 3.0))
    board.close("FINISHED")
    shown: dict[int, float] = {}
    for event in events(tmp_path):
        if event.HasField("session_log"):  # what TensorBoard does with it: later steps of earlier files are dropped
            shown = {step: loss for step, loss in shown.items() if step < event.step}
        shown.update((event.step, value.simple_value) for value in event.summary.value if value.tag == "loss")
    assert shown == {1: 5.0, 2: 4.0, 3: 3.0}


def test_without_an_address_tensorboard_alone_is_told(context, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with tracked(context) as trackers:
        assert [type(tracker).__name__ for tracker in trackers.trackers] == ["TensorBoard"]
        trackers.log(line(1, 5.0))
    assert any(value.tag == "loss" for event in events(context.job.folder / FOLDER) for value in event.summary.value)


def test_an_address_without_mlflow_says_what_to_install(context, monkeypatch):
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "mlflow":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"pip install -r requirements-mlflow\.txt"):
        Trackers(context)


class Broken:
    def log(self, line: Any) -> None:
        raise OSError("disk full")

    def rewind(self, step: int) -> None: ...

    def close(self, state: str) -> None: ...


def test_a_tracker_that_fails_ends_the_telling_and_not_the_run(context, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    trackers = Trackers(context)
    trackers.trackers.append(Broken())
    trackers.log(line(1, 5.0))
    trackers.log(line(2, 4.0))
    trackers.close("FINISHED")
    (event,) = context.lines("events.jsonl")
    assert event == {"event": "tracking_failed", "tracker": "Broken", "why": "OSError: disk full"}


needs_mlflow = pytest.mark.skipif(
    not importlib.util.find_spec("mlflow"), reason="mlflow is optional (requirements-mlflow.txt) and not installed"
)


@needs_mlflow
def test_mlflow_has_the_run_with_its_figures(context, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with tracked(context) as trackers:
        trackers.log(line(1, 5.0))
        trackers.log(line(2, 4.0))
    from mlflow import MlflowClient

    client = MlflowClient()
    (experiment,) = [item for item in client.search_experiments() if item.name == "athanor"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.tags["athanor.key"] == context.spec.key
    assert run.data.params["optimizer.learning_rate"] == "0.01"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 5.0), (2, 4.0)]

    with pytest.raises(RuntimeError), tracked(context) as trackers:  # the same job goes on, and fails
        trackers.log(line(3, 3.0))
        raise RuntimeError
    (again,) = client.search_runs([experiment.experiment_id])
    assert again.info.run_id == run.info.run_id and again.info.status == "FAILED"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3]


@needs_mlflow
def test_a_server_that_does_not_answer_is_an_event(context, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    trackers = Trackers(context)
    assert [type(tracker).__name__ for tracker in trackers.trackers] == ["TensorBoard"]
    (event,) = context.lines("events.jsonl")
    assert event["event"] == "tracking_failed" and event["tracker"] == "MLflow"
