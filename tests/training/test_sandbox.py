"""Code tests in the sandbox: right and wrong answers, and code that tries to get out."""

import os
from pathlib import Path

import psutil
import pytest

from tasks.errors import AthanorError, ConfigError
from tasks.training.rl.sandbox import Limits, Outcome, code_of, run_tests

ADD = "def add(a, b):\n    return a + b\n"
PASSES = "assert add(1, 2) == 3"
QUICK = Limits(cpu_seconds=1, seconds=3.0)


def test_right_and_wrong_code() -> None:
    assert run_tests(ADD, PASSES) == Outcome(True, "")
    assert run_tests(ADD.replace("+", "-"), PASSES) == Outcome(False, "AssertionError")
    assert run_tests("def add(a, b) return", PASSES) == Outcome(False, "SyntaxError")
    assert run_tests("", PASSES) == Outcome(False, "NameError")
    assert run_tests("import math, collections, re, heapq, itertools\n" + ADD + "print('x' * 200_000)", PASSES).passed


def test_the_code_of_an_answer() -> None:
    assert code_of(f"Here it is:\n```python\n{ADD}```\nand so on") == ADD
    assert code_of(f"```\n{ADD}") == ADD, "an answer that was cut off"
    assert code_of(ADD) == ADD


@pytest.mark.parametrize("gives_up", ["import os\nos._exit(0)", "import sys\nsys.exit(0)", "print('passed')\nexit()"])
def test_ending_early_is_not_passing(gives_up: str) -> None:
    assert not run_tests(gives_up, PASSES).passed


def test_an_endless_loop_ends() -> None:
    assert run_tests("while True: pass", PASSES, QUICK) == Outcome(False, "out of time")
    assert run_tests("import time\ntime.sleep(100)", PASSES, Limits(seconds=1.0)) == Outcome(False, "out of time")
    silent = "import os, time\nos.close(1)\ntime.sleep(100)"
    assert run_tests(silent, PASSES, Limits(seconds=1.0)) == Outcome(False, "out of time")
    assert not run_tests("while True: print('x' * 1000)", PASSES, QUICK).passed


def test_a_machine_that_is_too_busy_is_not_called_unfit() -> None:
    with pytest.raises(AthanorError, match=r"no process began within 0\.001 s; the machine is too busy") as raised:
        run_tests(ADD, PASSES, Limits(start_seconds=0.001))
    assert not isinstance(raised.value, ConfigError)


def test_memory_is_bounded() -> None:
    assert run_tests("x = bytearray(2 * 2**30)", PASSES) == Outcome(False, "MemoryError")


def test_nothing_can_be_started() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    bomb = "import os\nwhile True:\n    os.fork()"
    assert run_tests(bomb, PASSES, QUICK) == Outcome(False, "PermissionError")
    for code in (
        "import subprocess",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.kill(os.getppid(), 9)",
        "import _thread\n_thread.start_new_thread(print, ())",
    ):
        assert not run_tests(code, "", QUICK).passed, code
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


def test_nothing_can_be_written_or_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    for code in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "open('here', 'w')",
        f"open({str(secret)!r})",
        "open('/etc/passwd')",
        "import os\nos.listdir('/')",
        f"import os\nos.unlink({str(secret)!r})",
        f"import os\nos.mkdir({str(tmp_path / 'folder')!r})",
        "import os\nopen(f'/proc/{os.getppid()}/environ', 'rb')",
    ):
        assert not run_tests(code, "", QUICK).passed, code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.txt"]
    assert secret.read_text() == "password"


def test_raw_system_calls_are_refused_too(tmp_path: Path) -> None:
    code = (
        "import ctypes\n"
        f"found = ctypes.CDLL(None).syscall(2, {str(tmp_path / 'raw').encode()!r}, 0o102, 0o600)\n"
        "assert found >= 0"
    )
    assert run_tests(code, "", QUICK) == Outcome(False, "AssertionError")
    assert not (tmp_path / "raw").exists()


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "password")
    assert "SECRET_KEY" in os.environ
    assert run_tests("import os\nfound = dict(os.environ)", "assert 'password' not in str(found)").passed


def test_no_network() -> None:
    # The library's `socket` is not there, and needs none to be tried: the C library's is.
    code = "import ctypes\nassert ctypes.CDLL(None).socket(2, 1, 0) >= 0"
    assert run_tests(code, "", QUICK) == Outcome(False, "AssertionError")
    assert not run_tests("import socket\nsocket.socket()", "", QUICK).passed


def test_limits_cannot_be_raised_again() -> None:
    """Not even by root, who may raise them elsewhere."""
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))"
    assert run_tests(code, "", QUICK) == Outcome(False, "ValueError") or os.getuid() == 0
    assert not run_tests(code, "", QUICK).passed
