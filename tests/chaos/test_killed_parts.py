"""`kill -9` to every part of a run, one after another: the run ends well, with the bytes of an undisturbed one."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tasks.corpus.artifact import read_artifact
from tasks.corpus.registry import read_registry
from tasks.settings import REPOSITORY
from tests.end_to_end.runner import LIMIT, MICRO, SNAPSHOT, Runner, small_landing

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


VICTIMS = (
    Victim("a Dask worker", DASK, DASK),
    Victim("the Dask scheduler", r"dask spec --spec .*distributed\.Scheduler", DASK),
    Victim("the DAG processor", r"airflow dag-processor", DASK),
    Victim("the triggerer", r"airflow triggerer", TRAINER),
    Victim("the API server", r"airflow api[_-]server", TRAINER),
    Victim("a trainer's rank", TRAINER, TRAINER),
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
                found[0].kill()
                left.remove(victim)
                killed.append(victim.name)
                time.sleep(PAUSE)
                break
        time.sleep(0.1)
    return killed


def weights(uri: str) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in read_artifact(uri).files.items() if name.endswith(".safetensors")}


def undisturbed(landing: Path, folder: Path) -> dict[str, str]:
    """The same steps from a shell, without Airflow and without harm; the model's checksums."""

    def tasks(*words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "ATHANOR_HOME": str(folder)}
        subprocess.run([sys.executable, "-m", "tasks", *words], env=environment, check=True, timeout=LIMIT)

    corpus, store = str(folder / "store" / "corpus" / SNAPSHOT), str(folder / "store")
    tasks("curate", "--input", str(landing), "--snapshot", SNAPSHOT, "--output", corpus, "--workers", "1")
    instructions = str(landing / "instructions")
    tasks("train", "--recipe", str(MICRO), "--corpus", corpus, "--instructions", instructions, "--store", store)
    return weights(read_registry(store, "micro")["candidate"]["uri"])


def test_a_run_survives_the_death_of_each_part(tmp_path: Path) -> None:
    landing = small_landing(tmp_path / "landing")
    expected = undisturbed(landing, tmp_path / "calm")
    assert expected
    runner = Runner(tmp_path / "home", landing)
    process = runner.start("run")
    try:
        killed = kill_in_turn(process)
        text = runner.output(process)
    finally:
        process.kill()
    assert sorted(killed) == sorted(victim.name for victim in VICTIMS), text
    assert process.returncode == 0, text
    assert runner.left() == []
    assert weights(read_registry(runner.store, "micro")["candidate"]["uri"]) == expected
