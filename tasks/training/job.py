"""A training job: a folder that outlives whoever started it.

The trainer is a process group of its own. Its folder holds

    spec.json        what is trained
    lease.json       who owns it: a fencing token that only grows, the process, the host
    heartbeat        touched every second or two by the owner
    progress.jsonl   one line a step
    events.jsonl     what happened besides: a checkpoint skipped, ranks restarted, a spike rolled back
    log.txt          all output
    exit.json        how it ended, with the owner's token
    checkpoints/     see `tasks.training.checkpoint`

One job per key, ever: `submit` finds a finished artifact, re-attaches to a running trainer, or starts one. An owner
that is dead, or whose heartbeat went stale, is ended and replaced under a higher token; what the old one still tries
to write is refused, because it no longer holds the lease.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import orjson
import psutil

from tasks.corpus.machine import machine
from tasks.corpus.storage import LocalStore, join, to_json
from tasks.errors import AthanorError, DataError
from tasks.settings import REPOSITORY, StrictModel
from tasks.training.plan import StageSpec

STALE_AFTER = 60.0  # seconds without a heartbeat after which an owner counts as lost
WAKING = 5.0  # seconds for the next heartbeat of an owner that lives
EVENTS = "events.jsonl"
GRACE = 15.0  # seconds between asking a process group to end and killing it


class LeaseLost(AthanorError):
    """Another owner took this job over; this one must stop and write nothing more."""


class Lease(StrictModel):
    """Who owns a job. `host` is its machine (`tasks.corpus.machine`), `started` the process's start time, so that a
    reused pid is not taken for the owner."""

    token: int
    host: str
    pid: int
    started: float


class Exit(StrictModel):
    """How a run of the job ended."""

    token: int
    state: Literal["succeeded", "failed"]
    message: str = ""


class JobStatus(StrictModel):
    """`lost`: no owner is alive and there is no result; `submit` takes it over."""

    state: Literal["running", "succeeded", "failed", "lost"]
    progress: dict[str, Any] | None = None
    message: str = ""


class Job:
    """A handle on a job folder. Cheap to make; holds no open file and no process."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._files = LocalStore(self.folder)

    @classmethod
    def load(cls, folder: Path | str) -> "Job":
        """The job in a folder. Raises DataError when there is none."""
        job = cls(folder)
        if not job._files.exists("spec.json"):
            raise DataError(f"{folder}: no training job here (no spec.json)")
        return job

    @property
    def spec(self) -> StageSpec:
        return StageSpec.model_validate(orjson.loads(self._files.read("spec.json")))

    def lease(self) -> Lease | None:
        return Lease.model_validate_json(self._files.read("lease.json")) if self._files.exists("lease.json") else None

    def exit(self) -> Exit | None:
        """How the present owner's run ended, or None while it has not."""
        if not self._files.exists("exit.json"):
            return None
        record, lease = Exit.model_validate_json(self._files.read("exit.json")), self.lease()
        return record if lease and record.token == lease.token else None

    # What the owner does

    def check(self, token: int) -> None:
        """Raise LeaseLost unless `token` still owns the job. Called before every write that matters."""
        lease = self.lease()
        if lease is None or lease.token != token:
            raise LeaseLost(
                f"{self.folder}: this trainer (token {token}) was replaced (token {lease.token if lease else None})"
            )

    @contextmanager
    def owned(self, token: int) -> Iterator[None]:
        """Hold the job's lock while `token` owns it: nobody takes over in between. For writes that are short."""
        with self._locked():
            self.check(token)
            yield

    def append(self, token: int, name: str, record: dict[str, Any]) -> None:
        """Add one JSON line to a file of the folder; refused when `token` no longer owns the job."""
        with self.owned(token), (self.folder / name).open("ab") as stream:
            stream.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def event(self, token: int, name: str, **evidence: Any) -> None:
        """Add one line to events.jsonl, and say it in the log: something that a person may want to look at."""
        self.append(token, EVENTS, {"event": name, **evidence})
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in evidence.items())}", flush=True)

    def beat(self, token: int) -> None:
        self.check(token)
        (self.folder / "heartbeat").touch()

    def finish(self, token: int, state: Literal["succeeded", "failed"], message: str = "") -> None:
        """Record how the owner's run ended; the first record of a run stays."""
        self.check(token)  # without the lock: who ends this run holds it while it waits for this record
        if self.exit() is None:
            self._files.write("exit.json", to_json(Exit(token=token, state=state, message=message).model_dump()))

    # What everyone else does

    def status(self) -> JobStatus:
        """State, last line of progress, and a message for a person."""
        running, progress, record = self.at_work(), self.progress(), self.exit()
        if running:
            return JobStatus(state="running", progress=progress)
        if self.spec.finished:
            return JobStatus(state="succeeded", progress=progress)
        if record is not None and record.state == "failed":
            return JobStatus(state="failed", progress=progress, message=record.message)
        return JobStatus(state="lost", progress=progress, message=f"no trainer is alive; its log: {self.log}")

    def at_work(self) -> bool:
        """Whether its owner lives and has not ended. Looks at the folder alone, never at the store."""
        lease = self.lease()
        running = lease is not None and _alive(lease) and self._beats(lease)
        return running and self.exit() is None  # read last: it may have ended since

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def progress(self) -> dict[str, Any] | None:
        """The last whole line of progress.jsonl."""
        path = self.folder / "progress.jsonl"
        if not path.exists():
            return None
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 8192))
            lines = stream.read().split(b"\n")[:-1]
        return orjson.loads(lines[-1]) if lines else None

    def wait(
        self,
        timeout: float | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        poll: float = 0.5,
    ) -> JobStatus:
        """Wait until the job is no longer running, or for `timeout` seconds. `on_progress` sees each new last line."""
        until, seen = time.monotonic() + (timeout or float("inf")), None
        while True:
            status = self.status()
            if on_progress and status.progress and status.progress != seen:
                seen = status.progress
                on_progress(status.progress)
            if status.state != "running" or time.monotonic() > until:
                return status
            time.sleep(poll)

    def cancel(self) -> None:
        """End the job's process group and record that. Returns when no process of it is left.

        A group on another host cannot be reached: there the job passes to nobody, and its trainer stops at its next
        look at the lease, within a second.
        """
        with self._locked():
            lease = self.lease()
            if lease is None or self.exit() is not None:
                return
            if lease.host == machine():
                _end_group(lease)
            else:
                lease = Lease(token=lease.token + 1, host="", pid=0, started=0.0)
                self._files.write("lease.json", to_json(lease.model_dump()))
            self.finish(lease.token, "failed", "cancelled")

    # Starting

    def start(self) -> None:
        """Take the job over and start its process group. Only `submit` calls this, under the lock."""
        old = self.lease()
        if old is not None:
            _end_group(old)
        token = old.token + 1 if old else 1
        (self.folder / "heartbeat").touch()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks", "run-job", str(self.folder), "--token", str(token)],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that no signal meant for the starter reaches the trainer
            )
        lease = Lease(
            token=token, host=machine(), pid=process.pid, started=psutil.Process(process.pid).create_time()
        )
        self._files.write("lease.json", to_json(lease.model_dump()))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def await_lease(self, token: int) -> None:
        """Called by a trainer that has just been started: wait until its starter has written the lease."""
        with self._locked():
            self.check(token)

    def _beats(self, lease: Lease) -> bool:
        """Whether its heart beats. Old beats of this machine are looked at twice: had it slept, all are old."""
        if self._beat_age() >= STALE_AFTER and lease.host == machine():
            time.sleep(WAKING)
        return self._beat_age() < STALE_AFTER

    def _beat_age(self) -> float:
        return time.time() - (self.folder / "heartbeat").stat().st_mtime


def place(job: Job) -> str:
    """Where the store keeps what all homes that share it must know of a job."""
    return join(job.spec.store, "jobs", job.spec.key)


def submit(spec: StageSpec, ranks: int | None = None) -> Job:
    """Make sure that the stage is trained or being trained; safe to call any number of times, by anyone.

    A finished artifact: nothing starts. A running trainer: it is re-attached to. Otherwise (never started, failed,
    cancelled, lost): a new one starts under a higher token and resumes from the last complete checkpoint, on `ranks`
    processes if given, else on as many as the recipe says.
    """
    job, spec = Job(spec.job), spec.model_copy(update={"ranks": ranks})
    with job._locked():
        known = job._files.exists("spec.json")
        if known and job.status().state == "running":
            return job
        job._files.write("spec.json", to_json(spec.model_dump(mode="json")))
        if not spec.finished:
            job.start()
    return job


def _alive(lease: Lease) -> bool:
    """Whether the owner's process lives. On another host only its heartbeat can tell."""
    if lease.host != machine():
        return True
    try:
        process = psutil.Process(lease.pid)
        return abs(process.create_time() - lease.started) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _members(lease: Lease) -> list[psutil.Process]:
    """Living processes of the owner's group, which is also its session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            ours = os.getpgid(process.pid) == lease.pid and process.create_time() >= lease.started - 1.0
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _end_group(lease: Lease) -> None:
    """Ask every process of the group to end, then kill what is left. Its leader may be dead already."""
    if lease.host != machine():
        return
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        members = _members(lease)
        if not members:
            return
        with suppress(ProcessLookupError):
            os.killpg(lease.pid, number)
        psutil.wait_procs(members, timeout=patience)
    if _members(lease):
        raise AthanorError(f"process group {lease.pid} does not end, not even when killed; look for it with ps")
