"""Named argument sets of tasks, each with its reason in words: DAG files say *which*, this file says *why*."""

from datetime import timedelta
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from tasks.errors import ConfigError, DataError, StorageError
from tasks.settings import settings

# The pool of the accelerator: one training job at a time. It counts deferred tasks, because a deferred training task
# is a trainer at work. The runner creates it; elsewhere: `airflow pools set accelerator 1 "…" --include-deferred`.
# With Celery these tasks go to the queue of that name, so that a worker on the machine with the accelerator takes them.
ACCELERATOR_POOL = ACCELERATOR_QUEUE = "accelerator"

_BY_KIND_OF_ERROR = ExceptionRetryPolicy(
    rules=[
        RetryRule(ConfigError, RetryAction.FAIL, reason="the same configuration fails again: correct it, then clear"),
        RetryRule(DataError, RetryAction.FAIL, reason="the same data fails again: repair it, then clear"),
        RetryRule(MemoryError, RetryAction.FAIL, reason="the same work needs the same memory"),
        RetryRule(StorageError, RetryAction.RETRY, timedelta(seconds=30), reason="a store may come back"),
    ]
)

# Steps of curation are idempotent by content key, so a retry costs only what was not finished.
CURATION: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=20),
    "retry_policy": _BY_KIND_OF_ERROR,
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
    "retry_policy": _BY_KIND_OF_ERROR,
    "execution_timeout": timedelta(days=14),
    "pool": ACCELERATOR_POOL,
    "queue": ACCELERATOR_QUEUE,
}

# Measuring loads the model, so it holds the accelerator as well. It is a pure function of the artifact.
EVALUATION: dict[str, Any] = {
    "retries": 1,
    "retry_delay": timedelta(seconds=20),
    "retry_policy": _BY_KIND_OF_ERROR,
    "execution_timeout": timedelta(hours=12),
    "pool": ACCELERATOR_POOL,
    "queue": ACCELERATOR_QUEUE,
}

# No retries: what the gate read has not changed, so its verdict would not either.
GATE: dict[str, Any] = {"retries": 0, "execution_timeout": timedelta(hours=2)}

# Reading a few small files and writing a pointer.
BOOKKEEPING: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=10),
    "retry_policy": _BY_KIND_OF_ERROR,
    "execution_timeout": timedelta(minutes=30),
}
