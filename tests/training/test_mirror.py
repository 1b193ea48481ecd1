"""Checkpoints in a store that is not on this machine: another machine goes on with them, to the bit."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tasks.corpus.artifact import read_artifact
from tasks.corpus.lease import Lease
from tasks.corpus.storage import join, open_store, to_json
from tasks.training.checkpoint import COMPLETE, complete_steps, problem
from tasks.training.job import Job, LeaseLost, place, submit
from tasks.training.job import Lease as Ownership
from tasks.training.mirror import MARKER, _digest, _Mirror
from tasks.training.plan import StageSpec, plan_stage
from tests.training.jobs import RECIPE, finish, lease_of, steps_of, wait_for_step
from tests.training.test_resume import figures, until

pytestmark = pytest.mark.filterwarnings("ignore")


def made_job(folder: Path, store: str) -> Job:
    """A job folder as `submit` leaves it, with an owner of token 1 and no process."""
    config = {"name": "tokenizer", "kind": "tokenizer"}
    spec = StageSpec.model_validate(
        {
            **{"recipe": "r", "stage": "tokenizer", "kind": "tokenizer", "key": "k", "job": str(folder)},
            **{"artifact": join(store, "artifacts", "k"), "store": store, "config": config, "parents": {}, "data": {}},
        }
    )
    folder.mkdir(parents=True)
    (folder / "spec.json").write_bytes(to_json(spec.model_dump(mode="json")))
    (folder / "lease.json").write_bytes(
        to_json(Ownership(token=1, host="here", pid=os.getpid(), started=0.0).model_dump())
    )
    (folder / "progress.jsonl").write_bytes(b'{"step": 4}\n{"step"')
    return Job.load(folder)


def checkpoint(job: Job, step: int, content: bytes) -> None:
    folder = job.folder / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / "part.pt").write_bytes(content)
    files = {"part.pt": {"sha256": _digest(content), "size": len(content)}}
    (folder / COMPLETE).write_bytes(to_json({"step": step, "ranks": 1, "states": {}, "files": files}))


@pytest.fixture
def job(bucket: str, tmp_path: Path) -> Job:
    made = made_job(tmp_path / "here" / "jobs" / "k", bucket)
    checkpoint(made, 4, b"four" * 1000)
    checkpoint(made, 8, b"eight" * 1000)
    return made


@pytest.fixture
def lease(job: Job) -> Iterator[Lease]:
    with Lease(place(job), "k", "training") as held:
        yield held


def elsewhere(job: Job, tmp_path: Path) -> Job:
    return made_job(tmp_path / "elsewhere" / "jobs" / "k", job.spec.store)


def test_the_store_holds_what_the_folder_holds(job: Job, lease: Lease) -> None:
    mirror = _Mirror(job, 1, lease)
    mirror.follow()
    assert [name[:13] for name in mirror.there()] == ["step-00000004", "step-00000008"]
    shutil.rmtree(job.folder / "checkpoints" / "step-00000004")
    checkpoint(job, 12, b"twelve")
    mirror.follow()
    before = [(entry.key, entry.modified) for entry in mirror.store.list()]
    assert [name[:13] for name in mirror.there()] == ["step-00000008", "step-00000012"]
    mirror.follow()
    assert [(entry.key, entry.modified) for entry in mirror.store.list()] == before, "nothing is copied twice"
    mirror.clear()
    assert list(mirror.store.list()) == []


@pytest.mark.parametrize("harm", ["none", "damaged", "missing", "without its marker"])
def test_the_newest_whole_one_is_fetched(job: Job, lease: Lease, tmp_path: Path, harm: str) -> None:
    mirror = _Mirror(job, 1, lease)
    mirror.follow()
    last = mirror.there()[-1]
    if harm == "damaged":
        mirror.store.write(f"{last}/part.pt", b"EIGHT" * 1000)
    elif harm != "none":
        mirror.store.delete(f"{last}/{'part.pt' if harm == 'missing' else MARKER}")
    other = elsewhere(job, tmp_path)
    _Mirror(other, 1, lease).fetch()
    step = 8 if harm == "none" else 4
    assert complete_steps(other.folder / "checkpoints") == [step]
    assert problem(other.folder / "checkpoints" / f"step-{step:08d}") == ""
    assert (other.folder / "progress.jsonl").read_bytes() == b'{"step": 4}\n', "whole lines alone"
    events = [orjson.loads(line) for line in (other.folder / "events.jsonl").read_bytes().splitlines()]
    assert [line["event"] for line in events] == [
        *(["checkpoint_skipped"] if harm in ("damaged", "missing") else []),
        "checkpoint_fetched",
    ]


def test_a_folder_that_is_as_far_is_left_alone_and_a_damaged_one_is_not(job: Job, lease: Lease) -> None:
    mirror = _Mirror(job, 1, lease)
    mirror.follow()
    mirror.fetch()
    assert not (job.folder / "events.jsonl").exists()
    for step in (4, 8):
        (job.folder / "checkpoints" / f"step-{step:08d}" / "part.pt").write_bytes(b"cut")
    mirror.fetch()
    assert "checkpoint_fetched" in (job.folder / "events.jsonl").read_text()
    assert problem(job.folder / "checkpoints" / "step-00000008") == ""


def test_who_was_replaced_copies_nothing(job: Job, lease: Lease) -> None:
    mirror = _Mirror(job, 0, lease)
    with pytest.raises(LeaseLost, match="was replaced"):
        mirror.follow()
    assert mirror.there() == []


@pytest.mark.slow
def test_a_trainer_on_another_machine_goes_on_to_the_bit(bucket: str, plan, tmp_path: Path) -> None:
    """The machine is lost in mid-training, with its folder; another one, which knows the store alone, ends the job."""
    tokenizer = plan("tokenizer", tmp_path / "tokenizer")
    finish(tokenizer)

    def spec_of(home: str, store: str) -> StageSpec:
        parents = {"tokenizer": tokenizer.artifact}
        return plan_stage(RECIPE, "pretrain", store=store, home=str(tmp_path / home), parents=parents)

    undisturbed = spec_of("calm", str(tmp_path / "store"))
    finish(undisturbed)
    lost = spec_of("lost", bucket)
    job = submit(lost)
    copies = open_store(join(place(job), "checkpoints"))
    until(lambda: any(f"{8:08d}" in entry.key and entry.key.endswith(MARKER) for entry in copies.list()), "8 is copied")
    wait_for_step(job, 9)
    os.killpg(lease_of(job).pid, signal.SIGKILL)
    until(lambda: job.status().state == "lost", "the job counts as lost")
    reached = (job.progress() or {})["step"]
    shutil.rmtree(job.folder)

    found = spec_of("found", bucket)
    again = finish(found)
    log = again.log.read_text()
    assert "checkpoint_fetched" in log and reached < 24
    assert figures(again) == figures(Job.load(undisturbed.job))
    assert len(steps_of(again)) == 24
    assert read_artifact(found.artifact).hash == read_artifact(undisturbed.artifact).hash
    assert list(copies.list()) == [], "what nobody will go on from is deleted"


@pytest.mark.slow
def test_two_homes_on_one_store_train_a_stage_once(bucket: str, plan, tmp_path: Path) -> None:
    """The second waits for the first, and finds the artifact; its job has no step of its own."""
    specs = [plan("tokenizer", tmp_path / home).model_copy(update={"store": bucket}) for home in ("one", "two")]
    specs = [spec.model_copy(update={"artifact": join(bucket, "artifacts", spec.key)}) for spec in specs]
    jobs = [submit(spec) for spec in specs]
    for job in jobs:
        status = job.wait(300)
        assert status.state == "succeeded", f"{status}\n{job.log.read_text()[-3000:]}"
    worked = [job for job in jobs if job.progress()]
    (waited,) = [job for job in jobs if not job.progress()]
    assert len(worked) == 1 and "waiting for its end" in waited.log.read_text()
    assert read_artifact(specs[0].artifact).hash == read_artifact(specs[1].artifact).hash
