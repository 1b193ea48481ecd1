"""`kill -9` to every part of a run, one after another: the run ends well, with the bytes of an undisturbed one."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.chaos.calm import Calm, corpus_of, weights_of
from tests.end_to_end.runner import LIMIT, Runner, await_job

pytestmark = pytest.mark.slow

PAUSE = 5.0  # seconds between two deaths
TRAINER = r"tasks\.training\.worker"
DASK = r"^dask worker|multiprocessing\.spawn"  # its title, or what it is called below a task of Airflow


@dataclass(frozen=True)
class Victim:
    """A process to kill: its command line, and what else must be at work at that moment."""

    name: str
    command: str
    during: str
    group: bool = False  # with its whole process group


VICTIMS = (
    Victim("a Dask worker", DASK, DASK),
    Victim("the Dask scheduler", r"dask spec --spec .*distributed\.Scheduler", DASK),
    Victim("a task's process", r"^airflow worker -- [0-9a-f]{8}-", DASK),
    Victim("the DAG processor", r"airflow dag-processor", DASK),
    Victim("the triggerer", r"airflow triggerer", TRAINER),
    Victim("the API server", r"airflow api[_-]server", TRAINER),
    Victim("a trainer's rank", TRAINER, TRAINER),
    Victim("the whole trainer", r"tasks run-job", TRAINER, group=True),
    Victim("the scheduler", r"airflow scheduler", TRAINER),
)


def below(pid: int) -> Iterator[tuple[psutil.Process, str]]:
    """Every process below `pid`, with its command line."""
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process, " ".join(process.cmdline()).strip()
        except psutil.NoSuchProcess:
            continue


def kill_in_turn(runner: "subprocess.Popen[str]") -> list[str]:
    """Kill every victim once, as soon as its moment has come, with PAUSE between two; the names of those killed."""
    left, killed = list(VICTIMS), []
    while left and runner.poll() is None:
        living = list(below(runner.pid))
        for victim in left:
            found = [process for process, command in living if re.search(victim.command, command)]
            if found and any(re.search(victim.during, command) for _, command in living):
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    os.killpg(found[0].pid, signal.SIGKILL) if victim.group else found[0].kill()
                left.remove(victim)
                killed.append(victim.name)
                time.sleep(PAUSE)
                break
        time.sleep(0.1)
    return killed


def test_a_run_survives_the_death_of_each_part(calm: Calm, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "home", calm.landing)
    process = runner.start("run")
    try:
        killed = kill_in_turn(process)
        text = runner.output(process)
    finally:
        process.kill()
    assert sorted(killed) == sorted(victim.name for victim in VICTIMS), text
    assert process.returncode == 0, text
    assert runner.left() == []
    assert (corpus_of(runner.store), weights_of(runner.store)) == (calm.corpus, calm.weights)


def test_a_machine_that_loses_its_power_in_mid_training_goes_on_at_the_next_run(calm: Calm, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "home", calm.landing)
    process = runner.start("run")
    job = await_job(runner, process)
    deadline = time.monotonic() + LIMIT
    while not any((runner.home / "jobs").glob("*/checkpoints/step-*")):
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was seen"
        time.sleep(0.1)
    runner.cut_the_power(process)
    assert runner.left() == [] and job.folder.is_dir()
    process = runner.start("run")
    text = runner.output(process)
    assert process.returncode == 0, text
    assert "reused" in text, "what was finished before is not done again"
    assert runner.left() == []
    assert (corpus_of(runner.store), weights_of(runner.store)) == (calm.corpus, calm.weights)
