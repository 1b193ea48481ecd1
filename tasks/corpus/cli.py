"""Commands over artifacts."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(lineage)
    app.command()(verify)


def lineage(
    model: Annotated[str, typer.Argument(help="folder of a model or any other artifact")],
    shards: Annotated[int, typer.Option(help="how many shards to list")] = 20,
) -> None:
    """Walk from a model back to the shards of raw text that it was made of."""
    from tasks.corpus.lineage import walk

    for ancestor in walk(model):
        indent = "  " * ancestor.depth
        if ancestor.artifact is None:
            typer.echo(f"{indent}✗ {ancestor.uri}: {ancestor.problem}")
            continue
        artifact = ancestor.artifact
        typer.echo(f"{indent}{artifact.stage} ({artifact.kind}) {artifact.hash[:12]}  {ancestor.uri}")
        if ancestor.problem:
            typer.echo(f"{indent}  ✗ {ancestor.problem}")
        for number, (name, checksum) in enumerate(sorted(artifact.data.items())):
            if number == shards:
                typer.echo(f"{indent}  … and {len(artifact.data) - shards} more (--shards)")
                break
            typer.echo(f"{indent}  ← {name}  {checksum[:16]}")


def verify(artifact: Annotated[str, typer.Argument(help="folder of an artifact")]) -> None:
    """Check every file of an artifact against its checksum."""
    from tasks.corpus.artifact import verify_artifact

    found = verify_artifact(artifact)
    typer.echo(f"{artifact}: {len(found.files)} files, all as written; hash {found.hash}")
