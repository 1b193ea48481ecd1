"""Commands of the cascade."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `train` and `search`."""

    @app.command()
    def train(
        corpus: Annotated[str, typer.Option(help="folder or s3://… of a curated corpus")],
        instructions: Annotated[str, typer.Option(help="folder or s3://… of instruction shards")] = "",
        preferences: Annotated[str, typer.Option(help="folder or s3://… of preference shards")] = "",
        recipe: Annotated[str | None, typer.Option(help="name in data_contracts/recipes, or a path")] = None,
        store: Annotated[str | None, typer.Option(help="where artifacts go")] = None,
        first: Annotated[str | None, typer.Option(help="first stage to run")] = None,
        last: Annotated[str | None, typer.Option(help="last stage to run")] = None,
    ) -> None:
        """Run a recipe's stages one after another: train, evaluate, gate. Finished stages are reused."""
        from tasks.cascade.runner import run_cascade
        from tasks.settings import settings

        config = settings(store=store, recipe=recipe)
        run_cascade(
            config.recipe,
            store=config.store,
            home=str(config.home),
            corpus=corpus,
            instructions=instructions,
            preferences=preferences,
            first=first,
            last=last,
            tell=typer.echo,
        )

    @app.command()
    def search(
        recipe: Annotated[str, typer.Option(help="name in data_contracts/recipes, or a path")],
        stage: Annotated[str, typer.Option(help="the stage to try out")],
        grid: Annotated[list[str], typer.Option(help="KEY=VALUE,VALUE… of that stage; again for another key")],
        parent: Annotated[list[str] | None, typer.Option(help="STAGE=URI of a finished artifact to begin with")] = None,
        corpus: Annotated[str, typer.Option(help="folder or s3://… of a curated corpus")] = "",
        instructions: Annotated[str, typer.Option(help="folder or s3://… of instruction shards")] = "",
        metric: Annotated[str, typer.Option(help="figure of the evaluation; the lowest is best")] = "heldout_loss",
        store: Annotated[str | None, typer.Option(help="where artifacts go")] = None,
    ) -> None:
        """Train one stage with every combination of a few values; gives a table and a plot."""
        from tasks.cascade.search import parse_grid, search
        from tasks.gates.cli import parse_subjects
        from tasks.settings import settings

        config = settings(store=store)
        search(
            recipe,
            stage,
            parse_grid(grid),
            store=config.store,
            home=str(config.home),
            corpus=corpus,
            instructions=instructions,
            parents=parse_subjects(parent or []),
            metric=metric,
            tell=typer.echo,
        )
