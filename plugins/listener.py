"""What happens in a task's process before its work: the store's credentials are put where the work finds them."""

from typing import Any

from airflow.listeners import hookimpl

from plugins.credentials import use_connection


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:
    use_connection()
