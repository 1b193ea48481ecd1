"""`python -m tasks harvest`: a sample corpus, instruction and preference records from this machine."""

from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the project's command line."""

    @app.command()
    def harvest(
        into: Annotated[str, typer.Option(help="landing zone, a local folder")],
        snapshot: Annotated[
            str | None, typer.Option(help="date of the dated folder, YYYY-MM-DD; default: today")
        ] = None,
        min_documents: Annotated[int, typer.Option(min=1, help="fewest documents")] = 4000,
        min_bytes: Annotated[int, typer.Option(min=1, help="fewest bytes of UTF-8 text")] = 30_000_000,
        min_records: Annotated[int, typer.Option(min=1, help="fewest instruction records")] = 2000,
        min_pairs: Annotated[int, typer.Option(min=1, help="fewest preference records, which are synthetic")] = 800,
        seed: Annotated[int, typer.Option(min=0, help="seed of the sampling where there is more than needed")] = 0,
    ) -> None:
        """Harvest a sample corpus, instruction and preference records from what is installed on this machine."""
        from tasks.sample.harvest import harvest_corpus
        from tasks.sample.instructions import harvest_instructions
        from tasks.sample.preferences import harvest_preferences

        corpus = harvest_corpus(
            into,
            min_documents=min_documents,
            min_bytes=min_bytes,
            seed=seed,
            snapshot=snapshot,
            on_progress=_show,
        )
        instructions = harvest_instructions(
            into, min_records=min_records, max_records=2 * min_records, seed=seed, on_progress=_show
        )
        preferences = harvest_preferences(
            into, min_records=min_pairs, max_records=min_pairs * 3 // 2, seed=seed, on_progress=_show
        )
        typer.echo(_summary(into, corpus, instructions, preferences))


def _show(progress: dict[str, Any]) -> None:
    if "bytes" in progress:
        done = f"{progress['documents']:,} documents, {progress['bytes'] / 1e6:.1f} MB"
    else:
        done = f"{progress['records']:,} records"
    typer.echo(f"{progress['step']}: {progress['source']:<22} {done} so far")


def _summary(
    into: str, corpus: dict[str, Any], instructions: dict[str, Any], preferences: dict[str, Any]
) -> str:
    lines = [
        f"{'reused' if corpus['reused'] else 'harvested'} {corpus['documents']:,} documents "
        f"({corpus['bytes'] / 1e6:.1f} MB, {corpus['chinese_documents']:,} of them Chinese) "
        f"in {corpus['shards']} shards under {into}/{corpus['snapshot']}, {corpus['seconds']} s"
    ]
    for name, counts in corpus["sources"].items():
        lines.append(f"  {name:<22} {counts['documents']:>6,} documents {counts['bytes'] / 1e6:>7.2f} MB")
    categories = ", ".join(f"{count:,} {name}" for name, count in instructions["categories"].items())
    lines.append(
        f"{'reused' if instructions['reused'] else 'harvested'} {instructions['records']:,} instruction records "
        f"({categories}) under {into}/instructions, {instructions['seconds']} s"
    )
    kinds = ", ".join(f"{count:,} {name}" for name, count in preferences["kinds"].items())
    lines.append(
        f"{'reused' if preferences['reused'] else 'harvested'} {preferences['records']:,} synthetic preference records "
        f"({kinds}) under {into}/preferences, {preferences['seconds']} s"
    )
    return "\n".join(lines)
