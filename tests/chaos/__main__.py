"""`python -m tests.chaos [NAME…] [--seed N] [--report FILE] [--short] [--again]`: provoke faults, say what came of it.

Exit status 0 when every outcome was the right one. The seed decides which requests the S3 proxy spoils. NAMEs pick test
files by a part of their name. Outcomes are kept in `.athanor/chaos-<seed>.json`: a later run leaves out what came right
before, and its table shows all of it; `--again` begins anew.
"""

import argparse
import ast
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tasks.settings import REPOSITORY

TESTS = REPOSITORY / "tests"
FAULTS = (  # what is a fault is told by where its test lies, but for these
    "chaos",
    "corpus/test_lease.py",
    "plugins/test_ports.py",
    "training/test_lease.py",
    "training/test_resume.py",
    "training/test_mirror.py",
    "end_to_end/test_standalone.py::test_sigkill_to_the_parent_alone_leaves_nothing",
)


class Outcomes:
    """What came of each test, on disk after each."""

    def __init__(self, path: Path, again: bool) -> None:
        self.path = path
        self.rows: dict[str, dict[str, object]] = {}
        if path.exists() and not again:
            self.rows = json.loads(path.read_text(encoding="utf-8"))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self.rows.get(item.nodeid, {}).get("outcome") != "right"]
        for item in items:
            self.rows.pop(item.nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"outcome": "right", "seconds": 0.0})
        if report.failed:
            row["outcome"] = "WRONG"
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            row["outcome"] = f"not tried: {reason.removeprefix('Skipped: ')}"
        row["seconds"] = round(float(str(row["seconds"])) + report.duration, 1)
        row["date"] = f"{datetime.now(UTC):%Y-%m-%d}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.rows, indent=1), encoding="utf-8")


def in_words(nodeid: str) -> str:
    """`test_a_b[c]` → `a b: c`."""
    name, _, parameter = nodeid.rsplit("::", 1)[-1].removeprefix("test_").rstrip("]").partition("[")
    return name.replace("_", " ") + (f": {parameter}" if parameter else "")


def table(rows: dict[str, dict[str, object]]) -> str:
    lines = []
    for path in sorted({nodeid.split("::")[0] for nodeid in rows}):
        heading = ast.get_docstring(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))) or path
        lines += ["", f"**{heading.splitlines()[0]}** `{path}`", ""]
        lines += ["| fault | outcome | seconds |", "| --- | --- | ---: |"]
        for nodeid, row in rows.items():
            if nodeid.startswith(f"{path}::"):
                fault = in_words(nodeid).replace("|", "\\|").replace("\n", "\\n")
                lines.append(f"| {fault} | {row['outcome']} | {row['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def head(rows: dict[str, dict[str, object]], seed: int) -> str:
    """When, where, how many, and what came of them."""
    counts = [str(row["outcome"]).split(":")[0] for row in rows.values()]
    dates = sorted({str(row["date"]) for row in rows.values()})
    return (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, seed {seed}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores: {len(counts)} faults, {counts.count('right')} right, {counts.count('WRONG')} wrong, "
        f"{counts.count('not tried')} not tried, {sum(float(str(row['seconds'])) for row in rows.values()):.0f} s\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of test files, or parts of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the table there, too")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    parser.add_argument("--again", action="store_true", help="also what came right before")
    given = parser.parse_args()
    os.environ["CHAOS_SEED"] = str(given.seed)
    outcomes = Outcomes(REPOSITORY / ".athanor" / f"chaos-{given.seed}.json", given.again)
    files = [file for fault in FAULTS for file in _files(fault) if _wanted(file, given.names)]
    if not files:
        parser.error(f"no file of faults is named like {' or '.join(given.names)}")
    options = ["-q", "--show-capture=no", "-p", "no:cacheprovider", *(["-m", "not slow"] if given.short else [])]
    status = int(pytest.main([*files, *options], plugins=[outcomes]))
    if not outcomes.rows:
        return status
    text = f"# Faults and what came of them\n\n{head(outcomes.rows, given.seed)}{table(outcomes.rows)}"
    print(text)
    if given.report:
        given.report.write_text(text, encoding="utf-8")
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status


def _files(fault: str) -> list[str]:
    folder = TESTS / fault
    return [str(path) for path in sorted(folder.glob("test_*.py"))] if folder.is_dir() else [str(folder)]


def _wanted(file: str, names: list[str]) -> bool:
    return not names or any(name in Path(file.split("::")[0]).name for name in names)


if __name__ == "__main__":
    sys.exit(main())
