"""From when on a run's deadline counts."""

from datetime import UTC, datetime
from typing import Any

from airflow.sdk.definitions.deadline import BaseDeadlineReference


class RunCreated(BaseDeadlineReference):
    """The moment at which the run was made, and so queued for the first time.

    Airflow's own reference, DAGRUN_QUEUED_AT, is reckoned anew when a run is cleared, and Airflow 3.3.2 answers 500 to
    that: it takes the interval that it stored as JSON for a number. This one is reckoned once, when the run is made.
    """

    def _evaluate_with(self, *, session: Any, **kwargs: Any) -> datetime:
        return datetime.now(UTC)
