"""A person at a terminal: `python -m plugins.local …` in a home of its own, with all processes that it starts."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from plugins.local.api import Api
from tasks.corpus.artifact import read_artifact
from tasks.corpus.registry import read_registry
from tasks.corpus.storage import join, read_json
from tasks.sample.harvest import harvest_corpus
from tasks.sample.instructions import harvest_instructions
from tasks.settings import REPOSITORY
from tasks.training.job import Job

SNAPSHOT = "2026-01-15"
LIMIT = 900.0  # seconds; a run takes about two minutes on two idle cores
MICRO = Path(__file__).with_name("micro.yaml")


def small_landing(folder: Path) -> Path:
    """A landing zone of one snapshot and instruction records, from this machine."""
    harvest_corpus(str(folder), min_documents=300, min_bytes=1_000_000, snapshot=SNAPSHOT)
    harvest_instructions(str(folder), min_records=200, max_records=400)
    return folder


@dataclass
class Runner:
    """`python -m plugins.local` in one home, with every process that it was seen to start."""

    home: Path
    data: Path | str
    place: str = ""  # of the store; where none is named it lies in the home
    variables: dict[str, str] = field(default_factory=dict)
    recipe: Path = MICRO
    seen: set[psutil.Process] = field(default_factory=set)
    api: Api | None = None

    @property
    def store(self) -> str:
        return self.place or str(self.home / "store")

    def start(self, command: str) -> "subprocess.Popen[str]":
        named = ["--data", str(self.data), "--store", self.store, "--recipe", str(self.recipe)]
        given = named if command != "down" else []
        own = {"PYTHONPATH": str(REPOSITORY), "ATHANOR_HOME": str(self.home), "ATHANOR_WORKERS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "plugins.local", command, *given],
            cwd=REPOSITORY,
            env={**os.environ, **own, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen.add(psutil.Process(process.pid))
        return process

    def output(self, process: "subprocess.Popen[str]") -> str:
        """Everything it prints until it ends, while its descendants are noted."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            self.look(process)
        process.wait(timeout=LIMIT)
        return "".join(lines)

    def look(self, process: "subprocess.Popen[str]") -> None:
        try:
            self.seen |= set(psutil.Process(process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def said(self, name: str) -> dict[str, Any]:
        """What a file of Airflow's folder says: `guardian`, `passwords`."""
        return json.loads((self.home / "airflow" / f"{name}.json").read_text())

    def guardian(self) -> psutil.Process:
        """Who owns the Airflow that is up."""
        return psutil.Process(self.said("guardian")["pid"])

    def cut_the_power(self, process: "subprocess.Popen[str]") -> None:
        """Kill it and all below it at one stroke, none of whom can tell another."""
        self.look(process)
        for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        process.wait(timeout=LIMIT)

    def left(self) -> list[str]:
        """What still lives: descendants that were seen, members of their sessions, whatever works on this home."""
        sessions = {process.pid for process in self.seen}
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            try:
                session = os.getsid(process.pid)
                marked = process.environ().get("ATHANOR_HOME") == str(self.home)
            except (psutil.Error, ProcessLookupError):
                continue
            if process in self.seen or session in sessions or marked:
                found.append(f"{process.pid} {' '.join(process.info['cmdline'] or [])}")
        return found


@contextmanager
def up(runner: Runner) -> Iterator[Api]:
    """Airflow is up, its user `admin` is logged in; afterwards nothing of it is left."""
    started = runner.start("up")
    printed = runner.output(started)
    assert started.returncode == 0, printed
    guardian = runner.guardian()
    runner.seen |= {guardian, *guardian.children(recursive=True)}
    try:
        yield Api(runner.said("guardian")["url"], "admin", runner.said("passwords")["admin"])
    finally:
        runner.output(runner.start("down"))
        assert runner.left() == []


def check_trained(text: str, store: str) -> None:
    """What `make run` said, and what it left in the store: a gated candidate, and no document lost on the way."""
    report = read_json(join(store, "corpus", SNAPSHOT, "report.json"))
    assert report["read"] == report["kept"] + report["dropped"] + report["quarantined"] >= 300
    assert f"{report['read']:,} read = {report['kept']:,} kept" in text
    for stage, measure in (
        ("tokenizer", "bytes a token"),
        ("pretrain", "held-out loss"),
        ("sft", "held-out response loss"),
    ):
        assert re.search(rf"stage {stage} +[\d.,]+ → [\d.,]+ {measure}", text), text
    for gate in ("curated", "instructions", "tokens", "pretrain", "sft"):
        assert re.search(rf"gate +{gate} +(passed|warning)", text), text
    candidate = read_registry(store, "micro")["candidate"]
    assert candidate["uri"] in text
    assert read_artifact(candidate["uri"]).stage == "sft"


def await_job(runner: "Runner", process: "subprocess.Popen[str]") -> Job:
    """The first training job that is seen at work."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        runner.look(process)
        for folder in (runner.home / "jobs").glob("*"):
            if (folder / "lease.json").exists() and Job.load(folder).status().state == "running":
                return Job.load(folder)
        time.sleep(0.2)
    raise AssertionError("no training job started")
