"""Commands of the cascade."""

import typer


def register(app: typer.Typer) -> None:
    """Add `train`."""
