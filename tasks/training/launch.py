"""The supervisor of a job: fetches its inputs, starts its ranks, beats, and records how it ended.

The ranks are direct children in the supervisor's own process group, so that ending the group ends everything
(torchrun would put each rank into a session of its own).
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import FrameType

from tasks.corpus.lease import Lease
from tasks.corpus.storage import LocalStore, fetch_folder, open_store
from tasks.errors import AthanorError
from tasks.settings import REPOSITORY, settings
from tasks.training.hosts import Start, announce, remote_codes, withdraw
from tasks.training.job import GRACE, Job, LeaseLost, place
from tasks.training.recipe import TrainedStage

BEAT = 1.0  # seconds
RESTARTS = 3  # of ranks that something outside killed; more often, and it is no accident


class Ended(AthanorError):
    """The job was told to end."""


class RankKilled(AthanorError):
    """A rank ended by a signal: nothing that it did itself. The ranks can start again from the last checkpoint."""


def run_job(folder: str, token: int) -> None:
    """Run a job under a lease that its starter has written. Raises AthanorError when it fails.

    Nothing is recorded when the lease is lost on the way: the job has another owner then.
    """
    job = Job.load(folder)
    job.await_lease(token)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    stopping, ranks = threading.Event(), list[subprocess.Popen[bytes]]()  # the ranks that run now
    threading.Thread(target=_beat, args=(job, token, stopping), daemon=True).start()
    try:
        with _sole_trainer(job, token) as lease:
            if not job.spec.finished:  # by another home, for which this one has waited
                _fetch_parents(job)
                with _mirrored(job, token, lease):
                    _train(job, token, lease, ranks)
    except LeaseLost:
        raise
    except AthanorError as error:
        job.finish(token, "failed", str(error))
        raise
    else:
        job.finish(token, "succeeded")
    finally:
        stopping.set()
        stop_ranks(ranks)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(f"ended by signal {number} ({signal.Signals(number).name})")


def _beat(job: Job, token: int, stopping: threading.Event) -> None:
    with suppress(LeaseLost):  # the main thread meets it too, and ends the ranks
        while not stopping.wait(BEAT):
            job.beat(token)


def _sole_trainer(job: Job, token: int) -> Lease:
    """A lease on the stage in its store: of all homes that share the store one trains, the others wait for it.

    Who waits looks whether the job still is its own, as who trains does.
    """
    name = job.folder / "name"  # the owners of one folder replace each other: their tokens have decided
    if not name.exists():
        LocalStore(job.folder).write(name.name, uuid.uuid4().hex.encode(), if_absent=True)
    what, owner = f"training of stage '{job.spec.stage}'", name.read_text(encoding="utf-8")
    return Lease(place(job), job.spec.key, what, patient=True, owner=owner, waiting=lambda: job.check(token))


def _mirrored(job: Job, token: int, lease: Lease) -> AbstractContextManager[None]:
    """Checkpoints in the store, when that is not on this machine."""
    if open_store(job.spec.store).local() is not None:
        return nullcontext()
    from tasks.training.mirror import mirrored  # brings torch along

    return mirrored(job, token, lease)


def _fetch_parents(job: Job) -> None:
    for role, item in job.spec.parents.items():
        fetch_folder(item.uri, job.folder / "inputs" / role)


def _train(job: Job, token: int, lease: Lease, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Run the ranks until they have ended well; start them again when one was killed, at most RESTARTS times."""
    for attempt in range(RESTARTS + 1):
        start = _announced(job, token, attempt)
        count = start.ranks if start else _count(job)
        share, meeting = (start.share(0), start.environment(0)) if start else (range(count), {})
        ranks[:] = start_ranks(job, token, attempt, share, count, meeting)
        try:
            return _watch(job, token, lease, ranks, start)
        except RankKilled as killed:
            stop_ranks(ranks)
            if attempt == RESTARTS:
                raise AthanorError(f"{killed}; that was the {attempt + 1}. time") from killed
            (job.folder / f"error-{token}.txt").unlink(missing_ok=True)  # the others' complaint that one is gone
            job.event(token, "ranks_restarted", why=str(killed))
        finally:
            rendezvous(job, token, attempt).unlink(missing_ok=True)
            withdraw(job, token)


def _count(job: Job) -> int:
    """Ranks over all hosts."""
    config = job.spec.config
    return job.spec.ranks or (config.processes if isinstance(config, TrainedStage) else 1)


def _announced(job: Job, token: int, attempt: int) -> Start | None:
    """The start as the other hosts are told it; None where this one trains alone."""
    addresses = tuple(part.strip() for part in settings().hosts.split(",") if part.strip())
    if len(addresses) < 2 or _count(job) == 1:
        return None
    return announce(job, token, attempt, addresses, _count(job))


def rendezvous(job: Job, token: int, attempt: int) -> Path:
    """The file through which the ranks of one start find each other."""
    return job.folder.absolute() / f"rendezvous-{token}-{attempt}"


def start_ranks(
    job: Job, token: int, attempt: int, share: range, count: int, meeting: Mapping[str, str]
) -> list[subprocess.Popen[bytes]]:
    """Start this host's `share` of `count` ranks. `meeting`: where they meet the others; empty on a single host."""
    config = job.spec.config
    threads = config.threads if isinstance(config, TrainedStage) else 0
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")},
        **meeting,
        "WORLD_SIZE": str(count),
        "LOCAL_SIZE": str(len(share)),
        "ATHANOR_SUPERVISOR": str(os.getpid()),
        "PYTHONWARNINGS": "ignore",  # of libraries about each other; ours are errors
    }
    environment.setdefault("DS_ACCELERATOR", "cpu")
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:  # the host's name may resolve to an address that nobody answers on
        environment.setdefault("GLOO_SOCKET_IFNAME", loopback)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tasks.training.worker", str(job.folder), str(token), str(attempt)],
            cwd=REPOSITORY,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(place)},
            stdin=subprocess.DEVNULL,
        )
        for place, rank in enumerate(share)
    ]


def _watch(job: Job, token: int, lease: Lease, ranks: list[subprocess.Popen[bytes]], start: Start | None) -> None:
    """Until all ranks have ended well. Raises AthanorError as soon as one has not, RankKilled when it was killed."""
    while True:
        codes = [rank.poll() for rank in ranks] + (remote_codes(job, start) if start else [])
        for rank, code in enumerate(codes):
            if code and code < 0:  # looked for first: the others fail because this one is gone
                raise RankKilled(f"rank {rank} was killed by signal {-code}; see {job.log}")
        for rank, code in enumerate(codes):
            if code:
                raise AthanorError(_reason(job, token, rank, code))
        if all(code == 0 for code in codes):
            return
        job.check(token)
        lease.check()
        time.sleep(0.1)


def _reason(job: Job, token: int, rank: int, code: int) -> str:
    said = job.folder / f"error-{token}.txt"
    if said.is_file():
        return said.read_text(encoding="utf-8").strip()
    return f"rank {rank} ended with status {code}; see {job.log}"


def stop_ranks(ranks: list[subprocess.Popen[bytes]]) -> None:
    """End the ranks that still run: asked first, killed after half of the grace that the group has."""
    running = [rank for rank in ranks if rank.poll() is None]
    for rank in running:
        rank.terminate()
    until = time.monotonic() + GRACE / 2
    for rank in running:
        try:
            rank.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def job_error(folder: Path, token: int, message: str) -> None:
    """Leave the reason of a failure for the supervisor. The first rank to fail is the one that knows."""
    with suppress(FileExistsError), (folder / f"error-{token}.txt").open("x", encoding="utf-8") as stream:
        stream.write(message)
