"""`python -m tests.chaos [NAME…] [--seed N] [--report FILE] [--short] [--again]`: provoke faults, say what came of it.

Exit status 0 when every outcome was the right one. The seed decides which requests the S3 proxy spoils. NAMEs pick test
files by a part of their name. Outcomes are kept in `.athanor/outcomes`: a later run leaves out what came right before,
and its table shows all of it; `--again` begins anew.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

from tasks.settings import REPOSITORY
from tests.outcomes import Outcomes, finish, head, table

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of test files, or parts of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the table there, too")
    parser.add_argument("--short", action="store_true", help="without what takes minutes")
    parser.add_argument("--again", action="store_true", help="also what came right before")
    given = parser.parse_args()
    os.environ["CHAOS_SEED"] = str(given.seed)
    outcomes = Outcomes.load(f"chaos-{given.seed}", given.again)
    files = [file for fault in FAULTS for file in _files(fault) if _wanted(file, given.names)]
    if not files:
        parser.error(f"no file of faults is named like {' or '.join(given.names)}")
    options = ["-q", "--show-capture=no", "-p", "no:cacheprovider", *(["-m", "not slow"] if given.short else [])]
    status = int(pytest.main([*files, *options], plugins=[outcomes]))
    if not outcomes.rows:
        return status
    said = f"Seed {given.seed}; {head(outcomes.rows, 'faults')}"
    return finish(status, f"# Faults and what came of them\n\n{said}{table(outcomes.rows, 'fault')}", given.report)


def _files(fault: str) -> list[str]:
    folder = TESTS / fault
    return [str(path) for path in sorted(folder.glob("test_*.py"))] if folder.is_dir() else [str(folder)]


def _wanted(file: str, names: list[str]) -> bool:
    return not names or any(name in Path(file.split("::")[0]).name for name in names)


if __name__ == "__main__":
    sys.exit(main())
