"""Real jobs in tests: finish one, look at its steps, its lease, its processes."""

import os
import time
from pathlib import Path

import orjson
import psutil

from tasks.training.job import Job, Lease, submit
from tasks.training.plan import StageSpec

RECIPE = str(Path(__file__).parent / "micro.yaml")
PATIENCE = 300  # seconds; a job takes some ten on an idle machine


def finish(spec: StageSpec) -> Job:
    job = submit(spec)
    status = job.wait(PATIENCE)
    assert status.state == "succeeded", f"{status}\n{job.log.read_text()[-3000:]}"
    return job


def steps_of(job: Job) -> list[dict]:
    return [orjson.loads(line) for line in (job.folder / "progress.jsonl").read_bytes().splitlines()]


def lease_of(job: Job) -> Lease:
    lease = job.lease()
    assert lease is not None
    return lease


def group_of(job: Job) -> list[int]:
    leader = lease_of(job).pid
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def wait_for_step(job: Job, step: int) -> None:
    until = time.monotonic() + PATIENCE
    while ((job.progress() or {}).get("step") or 0) < step:
        assert job.status().state == "running", job.log.read_text()[-3000:]
        assert time.monotonic() < until
        time.sleep(0.02)
