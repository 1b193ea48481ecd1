"""`python -m tasks …`: every step from a shell, without Airflow."""

import importlib
import signal
import sys

import typer

from tasks.errors import AthanorError, ConfigError

AREAS = ("sample", "corpus", "curation", "gates", "training", "cascade")

app = typer.Typer(
    name="python -m tasks",
    help="Raw text in, a released language model out: each step as a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run a command. An error that the project foresaw is one line, and exit status 1 (2 for wrong configuration)."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that child processes are ended, too
    for area in AREAS:
        importlib.import_module(f"tasks.{area}.cli").register(app)
    try:
        app()
    except AthanorError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
