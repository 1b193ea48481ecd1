"""What came of tests, kept on disk after each, so that what takes hours can be run in parts; and tables of it."""

import ast
import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.settings import REPOSITORY

Row = dict[str, str | float]  # outcome, seconds, date and commit of one test
PLACE = REPOSITORY / ".athanor" / "outcomes"


def commit() -> str:
    """The commit that is tested; with a plus where files differ from it."""
    words = ["git", "describe", "--always", "--dirty=+"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


@dataclass(eq=False)  # pytest keeps its plugins in a set
class Outcomes:
    """A plugin of pytest: leaves out what came right before, and notes what comes of the rest."""

    path: Path
    rows: dict[str, Row] = field(default_factory=dict)
    commit: str = field(default_factory=commit)

    @classmethod
    def load(cls, name: str, again: bool) -> "Outcomes":
        path = PLACE / f"{name}.json"
        return cls(path, json.loads(path.read_text(encoding="utf-8")) if path.exists() and not again else {})

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self.rows.get(item.nodeid, {}).get("outcome") != "right"]
        for item in items:
            self.rows.pop(item.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"outcome": "not ended", "seconds": 0.0, "commit": self.commit})
        if report.passed and report.when == "call":
            row["outcome"] = "right"
        elif report.failed:
            row["outcome"] = "WRONG"
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            row["outcome"] = f"not tried: {reason.removeprefix('Skipped: ')}"
        row["seconds"] = round(float(row["seconds"]) + report.duration, 1)
        row["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")


def in_words(nodeid: str) -> str:
    """`test_a_b[c]` → `a b: c`."""
    name, _, parameter = nodeid.rsplit("::", 1)[-1].removeprefix("test_").rstrip("]").partition("[")
    return name.replace("_", " ") + (f": {parameter}" if parameter else "")


def table(rows: dict[str, Row], column: str) -> str:
    """One table a file, under what the file says of itself; `column` names what its tests are."""
    lines = []
    for path in sorted({nodeid.split("::")[0] for nodeid in rows}):
        heading = ast.get_docstring(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))) or path
        lines += ["", f"**{heading.splitlines()[0]}** `{path}`", ""]
        lines += [f"| {column} | outcome | seconds |", "| --- | --- | ---: |"]
        for nodeid, row in rows.items():
            if nodeid.startswith(f"{path}::"):
                words = in_words(nodeid).replace("|", "\\|").replace("\n", "\\n")
                lines.append(f"| {words} | {row['outcome']} | {row['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def head(rows: dict[str, Row], things: str) -> str:
    """When, where, on which commits, how many, and what came of them."""
    counts = [str(row["outcome"]).split(":")[0] for row in rows.values()]
    dates = sorted({str(row["date"]) for row in rows.values()})
    commits = list(dict.fromkeys(str(row["commit"]) for row in rows.values()))
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, commit {', '.join(commits)}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores: {len(counts)} {things}, "
        f"{counts.count('right')} right, {counts.count('WRONG')} wrong, {counts.count('not tried')} not tried, "
        f"{sum(float(row['seconds']) for row in rows.values()):.0f} s\n"
    )


def finish(status: int, text: str, report: Path | None) -> int:
    """Show and keep the report; the exit status, 0 too where all had come right before."""
    print(text)
    if report:
        report.write_text(text, encoding="utf-8")
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status
