"""Commands of training: records brought into form, what the detached trainer runs, and a look at a job."""

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add `plan`, `import-instructions`, `import-preferences`, `run-job`, `job-resume` and `job-status`."""

    @app.command("plan")
    def plan_command(
        recipe: Annotated[str, typer.Option(help="name in data_contracts/recipes, or a path")],
    ) -> None:
        """What a recipe needs: parameters, layout, tokens a step, DeepSpeed's check, memory a GPU. Trains nothing."""
        from tasks.training.capacity import plan_of, table
        from tasks.training.recipe import TrainedStage, load_recipe

        known = load_recipe(recipe)
        for planned in plan_of(known):
            stage = known.stage(planned.stage)
            assert isinstance(stage, TrainedStage)
            typer.echo("\n".join(table(planned, stage)))

    @app.command("import-instructions")
    def import_instructions_command(
        uri: Annotated[str, typer.Option("--from", help="file or folder of Alpaca, ShareGPT or OpenAI records")],
        into: Annotated[str, typer.Option(help="folder or s3://… for the records")],
        category: Annotated[str, typer.Option(help="of records that name none")] = "general",
        source: Annotated[str | None, typer.Option(help="of records that name none; default: the file's name")] = None,
    ) -> None:
        """Bring instruction records into the project's form; rows that do not fit are set aside with a reason."""
        from tasks.training.importing import import_instructions

        _tell(import_instructions(uri, into, category=category, source=source))

    @app.command("import-preferences")
    def import_preferences_command(
        uri: Annotated[
            str, typer.Option("--from", help="file or folder of answers with ranks, or chosen and rejected")
        ],
        into: Annotated[str, typer.Option(help="folder or s3://… for the records")],
        domain: Annotated[str, typer.Option(help="of records that name none")] = "general",
        source: Annotated[str | None, typer.Option(help="of records that name none; default: the file's name")] = None,
    ) -> None:
        """Bring preference records into the project's form; rows that do not fit are set aside with a reason."""
        from tasks.training.importing import import_preferences

        _tell(import_preferences(uri, into, domain=domain, source=source))

    @app.command("run-job")
    def run_job_command(
        folder: Annotated[Path, typer.Argument(help="the job's folder, with spec.json")],
        token: Annotated[int, typer.Option(help="fencing token of the lease that the starter wrote")],
    ) -> None:
        """Run a submitted training job (started by `submit`, not by hand)."""
        from tasks.training.launch import run_job

        run_job(str(folder), token)

    @app.command("host-agent")
    def host_agent_command(
        home: Annotated[Path, typer.Option(help="work folder that all hosts share (ATHANOR_HOME of the first)")],
        address: Annotated[str, typer.Option(help="this host's address, as ATHANOR_HOSTS names it on the first")],
        once: Annotated[bool, typer.Option(help="end after one start of one job")] = False,
    ) -> None:
        """Take part in training from this host, in every job that names it. Runs until it is ended."""
        from tasks.training.hosts import serve

        serve(home, address, once)

    @app.command("job-resume")
    def job_resume_command(
        folder: Annotated[Path, typer.Argument(help="the job's folder, with spec.json")],
        ranks: Annotated[int | None, typer.Option(min=1, help="processes; default: as many as the recipe says")] = None,
    ) -> None:
        """Go on with a job that ended or was lost, from its last whole checkpoint, on any number of processes."""
        from tasks.training.job import Job, submit

        typer.echo(submit(Job.load(folder).spec, ranks=ranks).status().model_dump_json(indent=2))

    @app.command("job-status")
    def job_status_command(folder: Annotated[Path, typer.Argument(help="the job's folder, with spec.json")]) -> None:
        """Show a training job's state and its last line of progress."""
        from tasks.training.job import Job

        typer.echo(Job.load(folder).status().model_dump_json(indent=2))


def _tell(reports: list[dict[str, Any]]) -> None:
    """Each imported file's counts in one line."""
    for report in reports:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report["reasons"].items())
        typer.echo(
            f"{report['file']}: read {report['read']:,} = {report['imported']:,} imported "
            f"+ {report['repeated']:,} repeated + {report['quarantined']:,} set aside"
            + (f" ({reasons})" if reasons else "")
        )
