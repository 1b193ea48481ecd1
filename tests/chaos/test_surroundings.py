"""A machine that lacks something: network, the right Python, disk, memory, a port; one line says what."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from plugins.local import machine
from tasks.errors import ConfigError
from tasks.settings import REPOSITORY

FILES = ("Makefile", "requirements.txt", "requirements-models.txt")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh checkout, as far as setting up needs it, and a folder `bin` that is all its PATH finds first."""
    for name in FILES:
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "bin").mkdir()
    return tmp_path


def python(clone: Path, name: str, *, does: str) -> None:
    path = clone / "bin" / name
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


# What CPython does with `-c` when the version is not the one that is asked for.
OTHER = 'case "$1" in -c) exit 1;; *) echo Python 3.13.1;; esac'


def set_up(clone: Path, path: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MAKE", "MFLAGS"))}
    make = shutil.which("make")
    assert make, "make is needed to run the tests at all"
    return subprocess.run(
        [make, "setup"], cwd=clone, env={**kept, "PATH": path, **variables}, capture_output=True, text=True, timeout=300
    )


def tools(clone: Path) -> str:
    """A PATH with what the Makefile's commands are, and no Python but those of the clone."""
    for name in ("sh", "bash", "touch", "rm", "env"):
        found = shutil.which(name)
        if found:
            (clone / "bin" / name).symlink_to(found)
    return str(clone / "bin")


def test_no_python_of_the_right_version_is_one_line(clone: Path) -> None:
    for name in ("python3.11", "python3.12", "python3", "python"):
        python(clone, name, does=OTHER)
    done = set_up(clone, tools(clone))
    assert done.returncode != 0 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert line.startswith("Python 3.11 or 3.12 is needed; install one, or name it: make setup PYTHON=")
    assert not (clone / ".venv").exists()


@pytest.mark.slow
def test_the_first_python_that_fits_is_taken_and_without_a_network_it_says_so(clone: Path) -> None:
    """`python3.11` reports another version, `python3.12` does not start; the one after them is right."""
    python(clone, "python3.11", does=OTHER)
    python(clone, "python3.12", does="echo broken >&2; exit 127")
    python(clone, "python3", does=f'exec "{sys.executable}" "$@"')
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        done = set_up(clone, tools(clone), PIP_INDEX_URL=index, PIP_RETRIES="0", PIP_CONFIG_FILE=os.devnull)
    assert done.returncode != 0
    assert f"setting up .venv with Python {'.'.join(map(str, sys.version_info[:2]))}." in done.stdout
    told = [line for line in done.stderr.splitlines() if line.startswith("packages could not be installed")]
    assert len(told) == 1 and "is there a network" in told[0] and "PIP_INDEX_URL" in told[0], done.stderr
    assert not (clone / ".venv" / ".ready").exists(), "the next `make setup` goes on"


def run(home: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "plugins.local", "up", *options],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "ATHANOR_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_port_in_use_that_was_asked_for_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(tmp_path, "--port", str(port))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"port {port} is in use by process {os.getpid()}" in done.stderr and "PORT=" in done.stderr
    assert not (tmp_path / "airflow" / "guardian.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk can be mounted by root only")
def test_a_small_disk_is_one_line(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        done = run(tmp_path / "home")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "0.0 GB free; 2 GB are needed: free some, or name another folder with ATHANOR_HOME" in done.stderr


def test_too_little_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMORY_BYTES", 2 * psutil.virtual_memory().total)
    with pytest.raises(ConfigError, match=r"GB of memory are available; \d+ GB are needed: end other programs"):
        machine.check_machine(tmp_path)
