"""Commands over the index of snapshots: its state, compaction, takedown."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(index)
    app.command()(takedown)


def index(
    uri: Annotated[str, typer.Argument(help="the index folder, or s3://…")],
    compact: Annotated[bool, typer.Option(help="bring all snapshots' rows into one file")] = False,
) -> None:
    """Say of every snapshot how many survivors it has, and whether its clusters must be made again, and why."""
    from tasks.curation.dedup import index as indexes

    if compact:
        done = indexes.compact(uri)
        typer.echo(f"{done['snapshots']} snapshots, {done['files_before']} files before, {done['files']} now")
    for state in indexes.states(uri):
        documents = state["documents"]
        size = f"{state['bytes'] / documents:.0f} bytes a document" if documents else ""
        because = f"STALE: {'; '.join(state['stale'])}" if state["stale"] else "current"
        total = f"{documents:>12,} documents  {state['bytes'] / 1e6:>10.2f} MB"
        typer.echo(f"{state['snapshot']}  {total}  {size}  {because}")


def takedown(
    doc_id: Annotated[str, typer.Argument(help="the whole doc_id, as `why` prints it")],
    reason: Annotated[str, typer.Option(help="who asked for it, and why; it becomes part of the verdict")],
    root: Annotated[str, typer.Option("--index", help="the index; or the output folder of a run that has none")],
) -> None:
    """Take a document out from the next clustering on. A twin that lost to it comes back then."""
    from tasks.curation.dedup.takedown import take_down

    new = take_down(root, doc_id, reason)
    typer.echo(f"{doc_id}: {'recorded' if new else 'was recorded before'}; curate the stale snapshots again:")
    for state in _stale(root):
        typer.echo(f"  {state}")


def _stale(root: str) -> list[str]:
    from tasks.curation.dedup.index import states

    return [state["snapshot"] for state in states(root) if state["stale"]]
