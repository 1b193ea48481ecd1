"""Commands of training: what the detached trainer runs, and a look at a job."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `run-job` and `job-status`."""

    @app.command("run-job")
    def run_job_command(
        folder: Annotated[Path, typer.Argument(help="the job's folder, with spec.json")],
        token: Annotated[int, typer.Option(help="fencing token of the lease that the starter wrote")],
    ) -> None:
        """Run a submitted training job (started by `submit`, not by hand)."""
        from tasks.training.launch import run_job

        run_job(str(folder), token)

    @app.command("job-status")
    def job_status_command(folder: Annotated[Path, typer.Argument(help="the job's folder, with spec.json")]) -> None:
        """Show a training job's state and its last line of progress."""
        from tasks.training.job import Job

        typer.echo(Job.load(folder).status().model_dump_json(indent=2))
