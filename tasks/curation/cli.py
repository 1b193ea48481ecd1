"""Commands of curation."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    from tasks.curation.dedup import index_cli

    app.command()(curate)
    app.command()(repair)
    app.command()(why)
    app.command()(recut)
    app.command()(report)
    index_cli.register(app)


def curate(
    input: Annotated[str, typer.Option(help="folder of raw shards, or s3://…")],
    output: Annotated[str, typer.Option(help="where curated text, verdicts and the report go")],
    config: Annotated[str | None, typer.Option(help="curation configuration: a name or a YAML file")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Dask worker processes")] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="of folders named YYYY-MM-DD, read this one alone; else the date to put down")
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="folder, or s3://…: drop duplicates of the earlier snapshots that are in it, too")
    ] = None,
) -> None:
    """Deduplicate and filter raw shards, with a verdict for every document. Finished work is reused."""
    from tasks.corpus.manifest import DATE
    from tasks.curation.cluster import dask_client
    from tasks.curation.steps import inventory, snapshots, whole_run
    from tasks.errors import ConfigError
    from tasks.settings import settings

    chosen = settings(curation=config, workers=workers)
    dates = snapshots(input)
    date = snapshot or next(reversed(dates), "1970-01-01")
    if not DATE.fullmatch(date):
        raise ConfigError(f"--snapshot {date}: expected a date, YYYY-MM-DD")
    if snapshot and input not in dates.values():
        if snapshot not in dates:
            raise ConfigError(f"--snapshot {snapshot}: {input} has {', '.join(dates) or 'no shards'}")
        input = dates[snapshot]
    plan = inventory(input, output, date, curation=chosen.curation, max_groups=chosen.max_groups)
    _say(f"{plan['shards']} shards, {plan['bytes'] / 1e6:.1f} MB, snapshot {date}")
    with whole_run(output, plan["work"]), dask_client(chosen.workers, chosen.dask_scheduler):
        _carry_out(output, plan["groups"], plan["groups"], index, chosen.failed_budget)
    _summary(output)


def _carry_out(
    output: str, groups: list[str], all_groups: list[str], index: str | None, budget: float
) -> dict[str, Any]:
    """The steps after the inventory; how many shards were computed and how many texts rewritten, and the hash."""
    from tasks.curation.steps import cluster_duplicates, compute_signals, publish, write_verdicts

    measured = [compute_signals(output, group, on_progress=_Meter("signals"), budget=budget) for group in groups]
    clusters = cluster_duplicates(output, index=index, budget=budget)
    found = sum(clusters["duplicates"].values())
    _say(f"duplicates: {found} of {clusters['documents']} documents that pass every rule")
    decided = [write_verdicts(output, group, on_progress=_Meter("verdicts")) for group in all_groups]
    return {
        "computed": sum(group["shards"] - group["reused"] for group in measured),
        "rewritten": sum(group["rewritten"] for group in decided),
        "after": publish(output)["hash"],
    }


def repair(
    output: Annotated[str, typer.Option(help="output folder of a curation run")],
    reason: Annotated[str, typer.Option(help="what was wrong and what was done about it; goes on record")],
    group: Annotated[list[str] | None, typer.Option(help="only shards of this group; may be given again")] = None,
    pattern: Annotated[str, typer.Option(help="only shards whose path fits, e.g. 'web/part-0*'")] = "",
    finished_too: Annotated[bool, typer.Option("--finished-too", help="compute finished shards again as well")] = False,
    index: Annotated[str | None, typer.Option(help="the index that the run was given")] = None,
) -> None:
    """Compute the signals of failed shards again, after their cause was mended, and publish again."""
    from getpass import getuser

    from tasks.curation.cluster import dask_client
    from tasks.curation.repair import corpus_hash, plan_repair, record_repair
    from tasks.settings import settings

    chosen, before = settings(), corpus_hash(output) or ""
    plan = plan_repair(output, groups=group or (), pattern=pattern, only_failed=not finished_too)
    with dask_client(chosen.workers, chosen.dask_scheduler):
        done = _carry_out(output, plan["groups"], plan["all_groups"], index, chosen.failed_budget)
    facts = {"by": getuser(), "reason": reason, "before": before, **done}
    run = f"shell {time.time():.3f}"
    record = record_repair(output, run, shards=plan["shards"], replaced=plan["replaced"], **facts)
    _summary(output)
    typer.echo(f"{done['computed']} shards computed again, {done['rewritten']} texts rewritten; record: {record}")


class _Meter:
    """Progress lines: shards, documents per second, MB per second."""

    def __init__(self, step: str) -> None:
        self.step, self.begun = step, time.monotonic()

    def __call__(self, progress: dict[str, Any]) -> None:
        seconds = max(time.monotonic() - self.begun, 1e-9)
        rate = f"{progress['documents'] / seconds:.0f} documents/s, {progress['bytes'] / seconds / 1e6:.2f} MB/s"
        done = f"{progress['shards_done']}/{progress['shards']}"
        _say(f"{self.step} {progress['group']} {done}: {progress['shard']}, {'reused' if progress['reused'] else rate}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _summary(output: str) -> None:
    from tasks.corpus.storage import join, read_json

    report = read_json(join(output, "report.json"))
    for name in ("read", "kept", "dropped", "quarantined"):
        typer.echo(f"{name:12} {report[name]:>10,} documents {report['bytes'].get(name, 0) / 1e6:>10.2f} MB")
    for rule, count in sorted(report["reasons"].items(), key=lambda item: -item[1]["documents"])[:12]:
        typer.echo(f"  {rule:40} {count['documents']:>8,}")
    for problem in report["problems"][:10]:
        first = "" if problem["row"] is None else f" ({problem['rows']} rows, the first is row {problem['row']})"
        typer.echo(f"  to mend: {problem['shard']}{first}: {problem['what']}")
        typer.echo(f"           {problem['remedy']}")
    for shard in report.get("left_out", [])[:10]:
        typer.echo(f"  left out: {shard} failed; it is in the log, and `python -m tasks repair` computes it again")
    typer.echo(f"report: {join(output, 'report.json')}")


def why(
    doc_id: Annotated[str, typer.Argument(help="a doc_id, its first digits, or the owner's own id")],
    output: Annotated[str, typer.Option(help="output folder of a curation run")],
) -> None:
    """Say in words why a document was kept, dropped or quarantined."""
    from tasks.curation.why import explain, find_verdicts

    if "/" not in output and not Path(output).exists():
        raise typer.BadParameter(f"{output}: no such folder", param_hint="--output")
    for verdict in find_verdicts(output, doc_id):
        typer.echo(explain(verdict))


def recut(
    output: Annotated[str, typer.Option(help="output folder of a finished curation run")],
    config: Annotated[str, typer.Option(help="curation configuration with other thresholds: a name or a YAML file")],
    index: Annotated[str | None, typer.Option(help="index of earlier snapshots that the run was made against")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Dask worker processes")] = None,
) -> None:
    """Decide a run again by other thresholds. Nothing is measured again, and unchanged text is not touched."""
    from tasks.curation.recut import recut as cut_again
    from tasks.settings import settings

    chosen = settings(curation=config, workers=workers)
    done = cut_again(
        output,
        chosen.curation,
        index=index,
        workers=chosen.workers,
        scheduler=chosen.dask_scheduler,
        on_progress=_Meter("verdicts"),
    )
    _say(f"text written anew for {done['rewritten']} of {done['shards']} shards")
    _summary(output)


def report(
    output: Annotated[str, typer.Option(help="output folder of a curation run")],
    near: Annotated[float, typer.Option(min=0, max=1, help="a near miss lies within this share of a threshold")] = 0.05,
    examples: Annotated[int, typer.Option(min=0, help="documents shown for each rule and verdict")] = 5,
    seed: Annotated[int, typer.Option(help="of the choice of examples")] = 1,
) -> None:
    """Print what each rule removed, and draw it as one HTML file with examples to review by hand."""
    from tasks.curation.review import draw, gather, lines

    found = gather(output, near=near, examples=examples, seed=seed)
    for line in lines(found):
        typer.echo(line)
    typer.echo(f"pictures and examples: {draw(output, found)}")
