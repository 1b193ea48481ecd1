"""Fifteen deferred trainings in one triggerer: each is awaited for itself, and none of them holds up another."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from plugins.triggers import TrainingJobTrigger
from tasks.corpus.machine import machine
from tasks.corpus.storage import to_json
from tasks.training.job import Job, Lease

JOBS = 15


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    """Folders of jobs at work, as their owners leave them: a process group each, a lease, a heartbeat."""
    owners = []
    for number in range(JOBS):
        folder = tmp_path / f"{number:02}"
        folder.mkdir()
        owners.append(subprocess.Popen(["sleep", "300"], start_new_session=True))
        started = psutil.Process(owners[-1].pid).create_time()
        lease = Lease(token=1, host=machine(), pid=owners[-1].pid, started=started)
        (folder / "lease.json").write_bytes(to_json(lease.model_dump()))
        (folder / "spec.json").write_text("{}")
        (folder / "heartbeat").touch()
    yield [Job(tmp_path / f"{number:02}") for number in range(JOBS)]
    for owner in owners:
        owner.kill()
        owner.wait()


def test_each_fires_for_its_own_job(jobs: list[Job]) -> None:
    fired: list[str] = []

    async def wait_for(job: Job) -> None:
        async for event in TrainingJobTrigger(str(job.folder), poll_seconds=0.05).run():
            fired.append(event.payload["job"])

    async def all_of_them() -> None:
        waiting = [asyncio.create_task(wait_for(job)) for job in jobs]
        await asyncio.sleep(0.5)
        assert fired == []
        for job in jobs[:7]:
            job.finish(1, "succeeded")
        await asyncio.wait_for(asyncio.gather(*waiting[:7]), 30)
        assert sorted(fired) == sorted(str(job.folder) for job in jobs[:7])
        await TrainingJobTrigger(str(jobs[7].folder)).on_kill()  # a person clears one of them
        await asyncio.wait_for(waiting[7], 30)
        for task in waiting[8:]:
            task.cancel()

    asyncio.run(all_of_them())
    assert len(fired) == 8
    assert [job.at_work() for job in jobs] == [False] * 8 + [True] * 7, "only the cleared one's process was ended"
