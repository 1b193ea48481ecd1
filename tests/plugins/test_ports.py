"""The port of the UI: held from its choice on, by one run alone; another's server is told from our own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from plugins.local.ports import held_port, listens_below
from tasks.errors import ConfigError
from tasks.settings import REPOSITORY

# Chooses as often as it is told to, and keeps each port from its parent's line until the next.
CHOOSER = """
import sys
from plugins.local.ports import held_port
for line in sys.stdin:
    with held_port(int(line)) as port:
        print(port.number, flush=True)
        sys.stdin.readline()
    print("left", flush=True)
"""
# Starts a child that is given the port, and ends.
STARTER = """
import subprocess, sys
from plugins.local.ports import held_port
with held_port(int(sys.argv[1])) as port:
    child = subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=port.descriptors)
    print(child.pid, flush=True)
"""


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def tell(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def listening(port: int = 0) -> Iterator[int]:
    """A server, as Airflow's, on a port of the loopback interface."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        yield int(server.getsockname()[1])


def test_runs_that_choose_at_once_never_choose_the_same() -> None:
    wished = free()
    with ExitStack() as stack:
        choosers = [stack.enter_context(python(CHOOSER)) for _ in range(3)]
        for chooser in choosers:
            stack.callback(chooser.kill)
        for _ in range(20):
            for chooser in choosers:
                tell(chooser, str(wished))
            chosen = [heard(chooser) for chooser in choosers]
            assert len(set(chosen)) == 3 and str(wished) in chosen
            for chooser in choosers:
                tell(chooser, "leave")
            assert {heard(chooser) for chooser in choosers} == {"left"}


def test_a_port_is_held_by_the_child_that_was_given_it_and_free_when_that_ends() -> None:
    wished = free()
    starter = python(STARTER, str(wished))
    child = int(heard(starter))
    assert starter.wait(timeout=20) == 0 and os.getpgid(child) == os.getpgid(0)
    with held_port(wished) as port:
        assert port.number != wished
    with listening(wished):  # it may listen beside what holds the port
        pass
    assert starter.stdin is not None
    starter.stdin.close()  # the child's own input ends
    while True:
        with held_port(wished) as port:
            if port.number == wished:
                return


def test_what_listens_already_is_passed_by_or_named() -> None:
    with listening() as taken:
        with held_port(taken) as port:
            assert port.number != taken
        with pytest.raises(ConfigError, match=rf"port {taken} is in use by process {os.getpid()} .*PORT="):
            held_port(taken, exactly=True).__enter__()
    with held_port(taken, exactly=True) as port:
        assert port.number == taken


def test_programs_that_look_for_a_port_are_turned_away_but_the_owner_may_listen() -> None:
    with held_port(free(), exactly=True) as port, socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port.number))
        with listening(port.number):
            assert listens_below(port.number, os.getpid())


def test_another_server_on_our_port_is_told() -> None:
    with listening() as port:
        assert listens_below(port, os.getpid())
        with python("input()") as other, pytest.raises(ConfigError, match=f"port {port} is in use by process"):
            listens_below(port, other.pid)
    assert not listens_below(port, os.getpid())
