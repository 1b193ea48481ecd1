"""`kill -9` of Dask workers and of the scheduler in mid-run: the run ends well, or says so and goes on when retried."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from tasks.corpus.shards import write_shard
from tasks.curation import cluster, steps
from tasks.curation.cluster import dask_client
from tasks.errors import ClusterError
from tasks.settings import REPOSITORY
from tests.chaos.runs import SNAPSHOT, curate, english, temporary_files, tree

SHARDS = 8


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    for shard in range(SHARDS):
        write_shard(folder / "web" / f"{shard}.jsonl.zst", [{"text": english(40 * shard + n)} for n in range(30)])
    return folder


@pytest.fixture(scope="module")
def undisturbed(landing: Path, tmp_path_factory: pytest.TempPathFactory, workers: None) -> dict[str, str]:
    output = tmp_path_factory.mktemp("undisturbed")
    curate(landing, output)
    return tree(output)


def once(kill: Callable[[], None]) -> Callable[[dict[str, Any]], None]:
    """Kill when the first shard is done, in the middle of the others."""

    def on_progress(progress: dict[str, Any]) -> None:
        if progress["shards_done"] == 1:
            kill()

    return on_progress


def worker_pids(client: Client) -> list[int]:
    client.wait_for_workers(2, timeout=120)
    return list(client.run(os.getpid).values())


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_shards_are_done_by_others(
    landing: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = str(tmp_path)
    steps.inventory(str(landing), output, SNAPSHOT)
    with cluster._activated(None), dask_client(2) as client:  # type: ignore[arg-type]
        steps.compute_signals(output, "group-0", on_progress=once(lambda: kill(worker_pids(client)[0])))
        steps.cluster_duplicates(output)
        steps.write_verdicts(output, "group-0", on_progress=once(lambda: kill(worker_pids(client)[-1])))
    steps.publish(output)
    assert tree(tmp_path) == undisturbed
    assert temporary_files(tmp_path) == []


@pytest.mark.slow
def test_a_killed_scheduler_is_told_and_the_next_try_goes_on(
    landing: Path, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    output = str(tmp_path)
    steps.inventory(str(landing), output, SNAPSHOT)
    with (
        pytest.raises(ClusterError, match=rf"scheduler is gone, with \d of {SHARDS} pieces not done"),
        cluster._activated(None),  # type: ignore[arg-type]
        dask_client(2) as client,
    ):
        scheduler = client.run_on_scheduler(os.getpid)
        pids = worker_pids(client)
        steps.compute_signals(output, "group-0", on_progress=once(lambda: kill(scheduler)))
    assert [pid for pid in pids if is_alive(pid)] == []
    assert steps.compute_signals(output, "group-0")["reused"] > 0
    curate(landing, tmp_path)
    assert tree(tmp_path) == undisturbed


@pytest.mark.slow
def test_workers_that_stay_away_are_not_waited_for_without_end(
    landing: Path, undisturbed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "NO_WORKERS", 5.0)
    output = str(tmp_path)
    steps.inventory(str(landing), output, SNAPSHOT)
    with cluster._activated(None), dask_client(2) as client:  # type: ignore[arg-type]
        worker_pids(client)

        def kill_all() -> None:
            for pid in worker_pids(client):
                nanny = psutil.Process(pid).parent()
                assert nanny is not None
                nanny.kill()  # who would start it again
                kill(pid)

        with pytest.raises(ClusterError, match="workers are gone"):
            steps.compute_signals(output, "group-0", on_progress=once(kill_all))
    curate(landing, tmp_path)
    assert tree(tmp_path) == undisturbed


def kill(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_command_leaves_no_process_of_dask(landing: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tasks", "curate", "--input", str(landing), "--output", str(tmp_path / "out")]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*command, "--workers", "2"], cwd=REPOSITORY, stdout=quiet, stderr=quiet)
    below: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + 120
    while len(below) < 5 and time.monotonic() < deadline:  # the scheduler, two nannies and their workers
        below |= {child.pid: child for child in psutil.Process(process.pid).children(recursive=True)}
        time.sleep(0.05)
    assert len(below) >= 5
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(list(below.values()), timeout=30)
    for child in left:
        child.kill()
    assert left == []
