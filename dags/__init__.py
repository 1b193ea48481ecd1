"""One thin file per DAG: schedule, parameters and the order of tasks."""
