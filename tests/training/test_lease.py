"""Leases, heartbeats and checkpoints without a trainer: who owns a job, and what counts as complete."""

import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tasks.corpus import lease as places
from tasks.corpus.machine import machine
from tasks.corpus.storage import to_json
from tasks.errors import DataError
from tasks.settings import REPOSITORY
from tasks.training import job as jobs
from tasks.training.job import Job, Lease, LeaseLost
from tests.training.jobs import lease_of


@pytest.fixture
def owner():
    """A process group that sleeps, to own a lease."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def job(plan, tmp_path, owner) -> Job:
    """A job that `owner` owns under token 3."""
    spec = plan("tokenizer", tmp_path)
    made = Job(spec.job)
    made.folder.mkdir(parents=True)
    (made.folder / "spec.json").write_bytes(to_json(spec.model_dump(mode="json")))
    lease = Lease(token=3, host=machine(), pid=owner.pid, started=psutil.Process(owner.pid).create_time())
    (made.folder / "lease.json").write_bytes(to_json(lease.model_dump()))
    (made.folder / "heartbeat").touch()
    return made


def age(job: Job, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(job.folder / "heartbeat", (then, then))


def test_alive_and_beating_is_running(job):
    assert job.status().state == "running"


def test_stale_heartbeat_is_lost(job):
    age(job, jobs.STALE_AFTER + 1)
    assert job.status().state == "lost"
    job.beat(3)
    assert job.status().state == "running"


def test_a_machine_that_slept_does_not_lose_its_trainers(job):
    """As it wakes all heartbeats are old, and whoever looks may be awake before the trainer is."""
    age(job, 600.0)
    wakes = threading.Timer(1.0, job.beat, [3])
    wakes.start()
    assert job.status().state == "running"
    wakes.join()


def test_dead_owner_is_lost(job, owner):
    owner.kill()
    time.sleep(0.1)  # not waited for: a zombie is dead as well
    assert job.status().state == "lost"


def test_reused_pid_is_not_the_owner(job):
    lease = job.lease()
    (job.folder / "lease.json").write_bytes(to_json({**lease.model_dump(), "started": lease.started - 1000}))
    assert job.status().state == "lost"


def test_old_owner_may_not_write(job):
    with pytest.raises(LeaseLost, match="token 2"):
        job.beat(2)
    with pytest.raises(LeaseLost):
        job.finish(2, "succeeded")
    assert job.exit() is None


def test_record_of_an_earlier_run_does_not_count(job):
    (job.folder / "exit.json").write_bytes(to_json({"token": 2, "state": "failed", "message": "old"}))
    assert job.status().state == "running"
    job.finish(3, "failed", "first")
    job.finish(3, "succeeded", "second")
    assert job.status().message == "first"


def test_takeover_ends_the_old_group(job, owner, monkeypatch):
    age(job, jobs.STALE_AFTER + 1)
    monkeypatch.setattr(sys, "executable", "/bin/true")  # what is started does not matter here
    jobs.submit(job.spec)
    assert not psutil.pid_exists(owner.pid)
    assert job.lease().token == 4


def test_cancel_without_a_run_does_nothing(plan, tmp_path):
    job = Job(plan("tokenizer", tmp_path).job)
    job.cancel()
    assert job.exit() is None


def test_no_job_is_said(tmp_path):
    with pytest.raises(DataError, match=r"spec\.json"):
        Job.load(tmp_path)


def test_half_written_progress_is_not_read(job):
    (job.folder / "progress.jsonl").write_bytes(b'{"step":1}\n{"step":2}\n{"st')
    assert job.progress() == {"step": 2}


def test_cancelled_from_another_host_its_trainer_may_write_nothing_more(job, owner, monkeypatch):
    """What the triggerer does in a container of its own: it cannot signal the group, and must not signal its own."""
    monkeypatch.setattr(socket, "gethostname", lambda: "triggerer-0")
    job.cancel()
    assert owner.poll() is None, "out of reach"
    monkeypatch.undo()
    with pytest.raises(LeaseLost):
        job.check(3)
    assert (job.status().state, job.status().message) == ("failed", "cancelled")
    job.cancel()
    assert lease_of(job).token == 4, "a second time nothing happens"


def test_cancelled_from_another_host_a_trainer_that_waits_for_its_place_stops_at_once(job, monkeypatch):
    """Another home trains the same stage; ours has never begun, and would begin when the other has ended."""
    command = [sys.executable, "-m", "tasks", "run-job", str(job.folder), "--token", "3"]
    with places.Lease(jobs.place(job), job.spec.key, "a training elsewhere"):
        waiting = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert waiting.stderr is not None
            assert any("waiting for its end" in line for line in waiting.stderr), "it never came to wait"
            monkeypatch.setattr(socket, "gethostname", lambda: "triggerer-0")
            job.cancel()
            monkeypatch.undo()
            told = waiting.communicate(timeout=5)[1]
        finally:
            waiting.kill()
            waiting.wait()
    assert waiting.returncode and "was replaced (token 4)" in told, told
    assert not job.spec.finished and job.status().message == "cancelled"
