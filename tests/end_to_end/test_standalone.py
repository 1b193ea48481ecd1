"""The main job through real `airflow standalone`: a run killed in its midst, a run to the end, a run that reuses it.

The three tests share one home, as a person's runs would; each also holds alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.corpus.registry import read_registry
from tasks.corpus.storage import join
from tasks.settings import REPOSITORY
from tasks.training.job import Job
from tests.end_to_end.runner import LIMIT, MICRO, SNAPSHOT, Runner, await_job, check_trained, small_landing


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    root = tmp_path_factory.mktemp("standalone")
    runner = Runner(root / "home", small_landing(root / "landing"))
    yield runner
    for process in runner.seen:
        if process.is_running():
            process.kill()


def test_sigkill_to_the_parent_alone_leaves_nothing(runner: Runner) -> None:
    process = runner.start("run")
    job = await_job(runner, process)
    runner.look(process)
    lease = job.lease()
    assert lease is not None and psutil.pid_exists(lease.pid)
    assert len(runner.left()) > 8, "scheduler, API server, DAG processor, triggerer, workers, guardian, trainer"
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    deadline = time.monotonic() + 40
    while runner.left() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert runner.left() == []
    assert job.status().state in ("failed", "lost")


def test_run_trains_a_gated_candidate_and_leaves_no_process(runner: Runner) -> None:
    process = runner.start("run")
    text = runner.output(process)
    assert process.returncode == 0, text
    assert runner.left() == []

    check_trained(text, runner.store)
    password = json.loads((runner.home / "airflow" / "passwords.json").read_text())["admin"]
    assert password not in text + (runner.home / "airflow" / "standalone.log").read_text(errors="replace")
    assert "passwords.json" in text and "http://127.0.0.1:" in text


def test_a_second_run_reuses_the_work_in_the_airflow_that_is_up(runner: Runner) -> None:
    up = runner.start("up")
    printed = runner.output(up)
    assert up.returncode == 0, printed
    state = json.loads((runner.home / "airflow" / "guardian.json").read_text())
    runner.seen |= {psutil.Process(state["pid"]), *psutil.Process(state["pid"]).children(recursive=True)}
    try:
        jobs = {folder.name: Job.load(folder).lease() for folder in (runner.home / "jobs").glob("*")}
        process = runner.start("run")
        text = runner.output(process)
        assert process.returncode == 0, text
        assert "using the Airflow that is up" in text
        for stage in ("tokenizer", "pretrain", "sft"):
            assert re.search(rf"stage {stage} .*\(reused\)", text), text
        assert {folder.name: Job.load(folder).lease() for folder in (runner.home / "jobs").glob("*")} == jobs
        check_report_needs_a_login(state["url"], runner)
        check_the_shell_finds_the_same_work(runner)
    finally:
        down = runner.start("down")
        printed = runner.output(down)
    assert (down.returncode, printed) == (0, f"{state['url']} is down\n")
    assert runner.left() == []


def check_the_shell_finds_the_same_work(runner: Runner) -> None:
    """`python -m tasks train` with the same inputs reuses what Airflow's run has made, and gates it again."""
    corpus, instructions = join(runner.store, "corpus", SNAPSHOT), join(str(runner.data), "instructions")
    command = ["train", "--recipe", str(MICRO), "--corpus", corpus, "--instructions", instructions]
    done = subprocess.run(
        [sys.executable, "-m", "tasks", *command, "--store", runner.store],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "ATHANOR_HOME": str(runner.home)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("artifact is there already") == 3, done.stdout
    candidate = read_registry(runner.store, "micro")["candidate"]["uri"]
    assert f"candidate of line micro: {candidate}" in done.stdout


def check_report_needs_a_login(url: str, runner: Runner) -> None:
    """The link of a gate leads to its report, for who is logged in; no path leads anywhere else."""
    (key,) = [folder.name for folder in (Path(runner.store) / "gates" / "sft").iterdir()]
    report = f"{url}/athanor/reports/sft/{key}"
    assert status_of(report) == 401
    login = {
        "username": "admin",
        "password": json.loads((runner.home / "airflow" / "passwords.json").read_text())["admin"],
    }
    request = urllib.request.Request(
        f"{url}/auth/token", json.dumps(login).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        token = json.load(response)["access_token"]
    assert status_of(report, token) == 200
    assert status_of(f"{url}/athanor/reports/sft/..%2F..%2Fregistry", token) == 404


def status_of(url: str, token: str | None = None) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
