"""`python -m tasks gate`: a contract held against data from a terminal."""

from typing import Annotated

import typer

REFUSED = 3  # exit status; 1 and 2 are errors


def register(app: typer.Typer) -> None:
    """Add the command `gate`."""

    @app.command()
    def gate(
        contract: Annotated[str, typer.Argument(help="name of a file in data_contracts, or a path")],
        subjects: Annotated[list[str], typer.Argument(help="what it reads: NAME=URI, e.g. corpus=FOLDER")],
        report: Annotated[str, typer.Option(help="folder for report.html and result.json; a path or s3://…")],
    ) -> None:
        """Hold data against a contract. Exits with 0 when passed (with or without warnings), 3 when refused."""
        from tasks.corpus.storage import join
        from tasks.gates.gate import REPORT, run_gate, words
        from tasks.gates.report import sentence

        result = run_gate(contract, parse_subjects(subjects), report)
        typer.echo(f"{result.verdict}: {result.title}. {sentence(result)}")
        for outcome in result.failures:
            typer.echo(f"  {outcome.severity}: {words(outcome)}")
        typer.echo(f"report: {join(report, REPORT)}")
        if not result.passed:
            raise typer.Exit(REFUSED)


def parse_subjects(arguments: list[str]) -> dict[str, str]:
    """`["corpus=/data/x"]` → `{"corpus": "/data/x"}`. Raises ConfigError for one without a name or a URI."""
    from tasks.errors import ConfigError

    subjects = {}
    for argument in arguments:
        name, _, uri = argument.partition("=")
        if not name or not uri:
            raise ConfigError(f"subject {argument!r}: expected NAME=URI, e.g. corpus=store/corpus/2025-01-01")
        subjects[name] = uri
    return subjects
