"""`python -m tests.full [NAME…] [--again]`: every test that takes minutes, one after another, and a dated report.

Exit status 0 when all came right. NAMEs pick test files by a part of their path. Outcomes are kept in
`.athanor/outcomes`: a later run leaves out what came right before, so that the hours can be had in parts, and the
report (`tests/REPORT.md`) shows all of it; `--again` begins anew.
"""

import argparse
import sys

import pytest

from tasks.settings import REPOSITORY
from tests.outcomes import Outcomes, finish, head, table

REPORT = REPOSITORY / "tests" / "REPORT.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.full", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of test files, or parts of their path")
    parser.add_argument("--again", action="store_true", help="also what came right before")
    given = parser.parse_args()
    outcomes = Outcomes.load("full", given.again)
    paths = [str(path) for path in sorted((REPOSITORY / "tests").rglob("test_*.py"))]
    files = [path for path in paths if not given.names or any(name in path for name in given.names)]
    if not files:
        parser.error(f"no file of tests is named like {' or '.join(given.names)}")
    status = int(pytest.main([*files, "-q", "-m", "slow", "--durations=30"], plugins=[outcomes]))
    if not outcomes.rows:
        return status
    text = f"# The tests that take minutes\n\n{head(outcomes.rows, 'tests')}{table(outcomes.rows, 'test')}"
    return finish(status, text, REPORT)


if __name__ == "__main__":
    sys.exit(main())
