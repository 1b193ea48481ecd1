"""Waiting for a training job without holding a worker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from tasks.training.job import Job


class TrainingJobTrigger(BaseTrigger):
    """Fires once when the job in a folder has ended or was lost, and writes its progress to the task's log.

    It only reads the job folder, so two triggerers may run it at once, and none needs the store's credentials: how the
    job ended is for the task to find out. A restarted triggerer reads on; only a person who kills or clears the task
    ends the job.
    """

    def __init__(self, job: str, poll_seconds: float = 2.0, log_seconds: float = 15.0) -> None:
        super().__init__()
        self.job, self.poll_seconds, self.log_seconds = job, poll_seconds, log_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"job": self.job, "poll_seconds": self.poll_seconds, "log_seconds": self.log_seconds}
        return "plugins.triggers.TrainingJobTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        clock = asyncio.get_running_loop().time
        logged_at, logged = clock(), None
        while True:
            job = Job.load(self.job)
            if not await asyncio.to_thread(job.at_work):
                yield TriggerEvent({"job": self.job})
                return
            progress = await asyncio.to_thread(job.progress)
            if progress != logged and clock() - logged_at >= self.log_seconds:
                logged_at, logged = clock(), progress
                self.log.info("%s", progress_line(progress))
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """Marked failed, marked succeeded or cleared by a person: end the job's process group."""
        await asyncio.to_thread(lambda: Job.load(self.job).cancel())


def progress_line(progress: dict[str, Any] | None) -> str:
    """The progress record as words: `step 40, loss 5.12, tokens_per_second 2980`."""
    if not progress:
        return "starting"
    words = []
    for key, value in progress.items():
        if isinstance(value, float):
            words.append(f"{key} {value:.4g}")
        elif isinstance(value, int | str):
            words.append(f"{key} {value}")
    return ", ".join(words)
