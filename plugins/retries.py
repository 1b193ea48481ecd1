"""Whether a failed task is tried again, by the kind of its error, and after how long."""

from datetime import timedelta
from typing import Any

from airflow.sdk import RetryAction, RetryPolicy
from airflow.sdk.definitions.retry_policy import RetryDecision

from tasks.errors import AthanorError, ClusterError, ConfigError, DataError, StorageError

FIRST, LONGEST = timedelta(seconds=30), timedelta(minutes=15)  # of waiting for what may come back
RULES: tuple[tuple[type[BaseException], RetryAction, str], ...] = (  # the first that fits
    (ConfigError, RetryAction.FAIL, "the same configuration fails again: correct it, then clear this task"),
    (DataError, RetryAction.FAIL, "the same data fails again: mend it, then clear this task"),
    (MemoryError, RetryAction.FAIL, "the same work needs the same memory: give it more, then clear this task"),
    (StorageError, RetryAction.RETRY, "a store may come back"),
    (ClusterError, RetryAction.RETRY, "workers may come back, and what they finished is kept"),
    (AthanorError, RetryAction.DEFAULT, ""),
    (ConnectionError, RetryAction.RETRY, "the network may come back"),
    (TimeoutError, RetryAction.RETRY, "what did not answer may do so later"),
)


class ByKindOfError(RetryPolicy):
    """Fails at once what would fail again; waits for what may come back, twice as long each time."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Any | None = None
    ) -> RetryDecision:
        for kind, action, reason in RULES:
            if isinstance(exception, kind):
                wait = min(FIRST * 2 ** (try_number - 1), LONGEST) if action is RetryAction.RETRY else None
                return RetryDecision(action=action, retry_delay=wait, reason=reason or None)
        return RetryDecision.default()
