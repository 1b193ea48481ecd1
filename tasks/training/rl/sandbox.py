"""Code that nobody has read, run against tests: a process that can compute and print, and nothing else.

Before the code runs its process gives up, for good and in this order: time, memory, files and processes beyond small
limits (`setrlimit`), and all system calls but some thirty that computing needs (seccomp). It can open no file, to read
or to write, reach no network, start no process or thread, and look at no other process, on any machine whose kernel has
seccomp, as root or not. Its environment is empty, its folder too. What it cannot be kept from is looking through its
own memory for the key with which success is reported: a reward for learning, not proof against an adversary.
"""

import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tasks.errors import AthanorError, ConfigError
from tasks.settings import StrictModel

CHILD = Path(__file__).with_name("sandbox_child.py")
MOST_OUTPUT = 65_536  # bytes that are read of what it prints
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
STARTED = b"\x01"  # the child's first byte: it is locked in


class Limits(StrictModel):
    """What one piece of code may use."""

    cpu_seconds: int = 2
    seconds: float = 8.0  # on the clock, from the moment that it is locked in
    start_seconds: float = 60.0  # until then: a busy machine is not the code's fault
    memory_mb: int = 512


class Outcome(NamedTuple):
    """Whether every test passed; else why not, in a few words."""

    passed: bool
    why: str


def code_of(text: str) -> str:
    """The first fenced block of an answer, or all of it."""
    found = FENCED.search(text)
    return found[1] if found else text


def run_tests(code: str, tests: str, limits: Limits | None = None) -> Outcome:
    """Run `code`, then `tests` in the same namespace; passed when both end without an exception.

    Raises ConfigError where the machine cannot lock a process in, AthanorError where it is too busy to begin.
    """
    bounds, key = limits or Limits(), secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="athanor-code-") as folder:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD), str(bounds.cpu_seconds), str(bounds.memory_mb)],
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            printed, late = _talk(child, "\0".join([key, code, tests]).encode(), bounds)
        finally:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream:
                    stream.close()
    if late and not printed:
        raise AthanorError(
            f"code tests: no process began within {bounds.start_seconds:g} s; the machine is too busy (load "
            f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores): end other work and run the stage again, it goes on "
            "from its last checkpoint"
        )
    if not printed.startswith(STARTED):
        raise ConfigError(
            "code tests: this machine cannot lock a process in (Linux with seccomp on x86-64 or ARM64 is needed)"
            f"{': ' + printed.decode(errors='replace')[:200] if printed else ''}; leave code_tests out of `rewards`"
        )
    said = printed[-200:].decode(errors="replace").rpartition("\n")[2]
    if said == f"{key} passed":
        return Outcome(True, "")
    if said.startswith(f"{key} "):
        return Outcome(False, said.removeprefix(f"{key} "))
    late = late or child.returncode == -signal.SIGXCPU
    return Outcome(False, "out of time" if late else "ended before its tests did")


def _talk(child: "subprocess.Popen[bytes]", given: bytes, bounds: Limits) -> tuple[bytes, bool]:
    """Hand the child its work. Returns its first byte and the last of what it printed, and whether it was late."""
    assert child.stdin is not None and child.stdout is not None
    out = child.stdout.fileno()
    os.set_blocking(out, False)
    try:
        child.stdin.write(given)
        child.stdin.close()
    except BrokenPipeError:
        pass  # it ended already; what it printed says why
    printed, deadline = b"", time.monotonic() + bounds.start_seconds
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([out], [], [], left)[0]:
            break
        part = os.read(out, MOST_OUTPUT)
        if not part:
            try:
                child.wait(timeout=max(0.1, left))
            except subprocess.TimeoutExpired:  # it closed its output and goes on
                return printed, True
            return printed, False
        if not printed:
            deadline = time.monotonic() + bounds.seconds
        printed = (printed + part)[:1] + (printed + part)[1:][-MOST_OUTPUT:]
    return printed, True
