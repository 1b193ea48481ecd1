"""Named argument sets of tasks, each with its reason in words: DAG files say *which*, this file says *why*."""

from datetime import timedelta
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert

from plugins.deadlines import RunCreated
from plugins.notifier import AthanorNotifier, deadline_missed
from plugins.retries import ByKindOfError
from tasks.settings import settings

# The pool of the accelerator: one training job at a time. It counts deferred tasks, because a deferred training task
# is a trainer at work. The runner creates it; elsewhere: `airflow pools set accelerator 1 "…" --include-deferred`.
# With Celery these tasks go to the queue of that name, so that a worker on the machine with the accelerator takes them.
ACCELERATOR_POOL = ACCELERATOR_QUEUE = "accelerator"

# A task that failed for good is told of; what it is tried again for stands in plugins/retries.py.
_TOLD: dict[str, Any] = {"on_failure_callback": [AthanorNotifier("failed")]}
_BY_KIND: dict[str, Any] = {"retry_policy": ByKindOfError(), **_TOLD}


def deadline() -> DeadlineAlert:
    """Of a run: it is told of when it takes longer than `deadline_hours`, and goes on."""
    hours = settings().deadline_hours
    told = AsyncCallback(deadline_missed, kwargs={"hours": hours})
    return DeadlineAlert(reference=RunCreated(), interval=timedelta(hours=hours), callback=told)


# Steps of curation are idempotent by content key, so a retry costs only what was not finished.
CURATION: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    **_BY_KIND,
    "execution_timeout": timedelta(hours=12),
}

# Each group starts a Dask cluster of its own unless an external scheduler is configured; two of them at once would
# oversubscribe one machine, so groups then go one after another. With an external scheduler it shares the load.
CURATION_GROUP: dict[str, Any] = {
    **CURATION,
    "max_active_tis_per_dag": None if settings().dask_scheduler else 1,
}

# A trainer lost with its machine resumes from its last checkpoint at the next try; one that failed by its own error
# fails again, and the operator says so without a retry.
TRAINING: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    **_BY_KIND,
    "execution_timeout": timedelta(days=14),
    "pool": ACCELERATOR_POOL,
    "queue": ACCELERATOR_QUEUE,
}

# Measuring loads the model, so it holds the accelerator as well. It is a pure function of the artifact.
EVALUATION: dict[str, Any] = {
    "retries": 1,
    "retry_delay": timedelta(seconds=20),
    **_BY_KIND,
    "execution_timeout": timedelta(hours=12),
    "pool": ACCELERATOR_POOL,
    "queue": ACCELERATOR_QUEUE,
}

# No retries: what the gate read has not changed, so its verdict would not either.
GATE: dict[str, Any] = {"retries": 0, "execution_timeout": timedelta(hours=2), **_TOLD}

# A person has a week; what was trained stays, and clearing the task asks again.
APPROVAL: dict[str, Any] = {"retries": 0, "response_timeout": timedelta(days=7), **_TOLD}

# Reading a few small files and writing a pointer.
BOOKKEEPING: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=10),
    **_BY_KIND,
    "execution_timeout": timedelta(minutes=30),
}
