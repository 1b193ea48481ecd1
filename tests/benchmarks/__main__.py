"""`make bench`: curation measured against datatrove, same documents, same machine, one run; then training beside TRL.

`python -m tests.benchmarks` runs all parts; `python -m tests.benchmarks rules languages` runs some. Each part keeps its
figures in `.athanor/bench/results`, and `tests/benchmarks/REPORT.md` is written from all that are there; what
`training` finds is in `TRAINING.md`.
"""

import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from tests.benchmarks import agreement, parts, rollout, training
from tests.benchmarks.corpus import WORK, corpora
from tests.benchmarks.report import REPORT, rows, write_report

PARTS = {
    "signatures": parts.signatures,
    "rules": parts.rules,
    "agreement": agreement.measure_agreement,
    "curation": parts.curation,
    "languages": parts.languages,
    "growth": parts.growth,
    "start": parts.start,
    "limits": parts.limits,
    "rollout": rollout.measure,
}
NAMES = ", ".join((*PARTS, training.PART))


def main(
    chosen: Annotated[list[str] | None, typer.Argument(help=f"parts: {NAMES}; all by default")] = None,
    megabytes: Annotated[float, typer.Option(help="of each language")] = 12.0,
) -> None:
    """Measure, print a table, and write the dated report."""
    unknown = set(chosen or ()) - {*PARTS, training.PART}
    if unknown:
        raise typer.BadParameter(f"no such part: {', '.join(sorted(unknown))}; there are {NAMES}")
    if parts_chosen := [name for name in chosen or PARTS if name in PARTS]:
        curation(parts_chosen, megabytes)
    if not chosen or training.PART in chosen:
        training.measure()


def curation(chosen: list[str], megabytes: float) -> None:
    """Parts of the benchmark of curation, and their report."""
    english, chinese = corpora(megabytes)
    results = WORK / "results"
    results.mkdir(exist_ok=True)
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        scratch = WORK / f"scratch-{os.getpid()}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        found = PARTS[name](english, chinese, scratch)
        found |= {"when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "megabytes": megabytes}
        (results / f"{name}.json").write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        shutil.rmtree(scratch, ignore_errors=True)
    figures = {path.stem: orjson.loads(path.read_bytes()) for path in results.glob("*.json")}
    table = Table("work", "this project", "datatrove", "factor", "bar", "")
    for row in rows(figures):
        table.add_row(*row)
    Console(width=140).print(table)
    write_report(figures)
    print(f"report: {REPORT.relative_to(Path.cwd()) if REPORT.is_relative_to(Path.cwd()) else REPORT}")


if __name__ == "__main__":
    typer.run(main)
