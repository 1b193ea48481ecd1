"""Commands of the cascade."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `train`."""

    @app.command()
    def train(
        corpus: Annotated[str, typer.Option(help="folder or s3://… of a curated corpus")],
        instructions: Annotated[str, typer.Option(help="folder or s3://… of instruction shards")] = "",
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
            first=first,
            last=last,
            tell=typer.echo,
        )
