"""What Dask's own processes load first: the scheduler and the workers' nannies end with the step that started them.

Without it, a step killed with `kill -9` leaves a scheduler that waits for its client, and workers that wait for work.
"""

from typing import Any

from tasks.parent_death import end_with_parent


def dask_setup(server: Any) -> None:
    """Dask's hook: called once in the starting process, before it serves."""
    end_with_parent()
