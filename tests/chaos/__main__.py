"""`python -m tests.chaos [--seed N] [--report FILE] [--short]`: provoke every fault, print what came of each.

Exit status 0 when every outcome was the right one. The seed decides which requests the S3 proxy spoils.
"""

import argparse
import ast
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

HERE = Path(__file__).parent


class Outcomes:
    """What came of each test, in the order in which they ran."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self.rows.get(report.nodeid, ("right", 0.0))
        if report.failed:
            outcome = "WRONG"
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            outcome = f"not tried: {reason.removeprefix('Skipped: ')}"
        self.rows[report.nodeid] = (outcome, seconds + report.duration)


def in_words(nodeid: str) -> str:
    """`test_a_b[c]` → `a b: c`."""
    name, _, parameter = nodeid.rsplit("::", 1)[-1].removeprefix("test_").rstrip("]").partition("[")
    return name.replace("_", " ") + (f": {parameter}" if parameter else "")


def table(outcomes: Outcomes) -> str:
    lines = []
    for path in dict.fromkeys(nodeid.split("::")[0] for nodeid in outcomes.rows):
        heading = ast.get_docstring(ast.parse(Path(path).read_text(encoding="utf-8"))) or path
        lines += ["", f"**{heading.splitlines()[0]}**", "", "| fault | outcome | seconds |", "| --- | --- | ---: |"]
        for nodeid, (outcome, seconds) in outcomes.rows.items():
            if nodeid.startswith(f"{path}::"):
                fault = in_words(nodeid).replace("|", "\\|").replace("\n", "\\n")
                lines.append(f"| {fault} | {outcome} | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the table there, too")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    given = parser.parse_args()
    os.environ["CHAOS_SEED"] = str(given.seed)
    outcomes, begun = Outcomes(), time.monotonic()
    options = ["-q", "--show-capture=no", *(["-m", "not slow"] if given.short else [])]
    status = pytest.main([str(HERE), *options], plugins=[outcomes])
    counts = [outcome.split(":")[0] for outcome, _ in outcomes.rows.values()]
    head = (
        f"{datetime.now(UTC):%Y-%m-%d}, seed {given.seed}, Python {platform.python_version()}, {os.cpu_count()} cores: "
        f"{len(counts)} faults, {counts.count('right')} right, {counts.count('WRONG')} wrong, "
        f"{counts.count('not tried')} not tried, {time.monotonic() - begun:.0f} s\n"
    )
    text = f"# Faults and what came of them\n\n{head}{table(outcomes)}"
    print(text)
    if given.report:
        given.report.write_text(text, encoding="utf-8")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
