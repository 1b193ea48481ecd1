"""Real trainers, killed in every way, on other numbers of ranks, and stopped: they go on, nothing is written twice."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tasks.corpus.artifact import read_artifact
from tasks.settings import REPOSITORY
from tasks.tokens.shards import TokenShards
from tasks.training import job as jobs
from tasks.training.job import Job, submit
from tasks.training.mixture import MixedDocuments
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import PretrainStage
from tests.training.jobs import PATIENCE, RECIPE, finish, group_of, lease_of, steps_of, wait_for_step

THOROUGH = str(Path(__file__).parent / "thorough.yaml")
SAME = ("step", "loss", "grad_norm", "update_ratio", "activation_max", "learning_rate", "tokens")


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def ranks_of(job: Job) -> list[int]:
    return [process.pid for process in psutil.Process(lease_of(job).pid).children()]


def figures(job: Job) -> list[list[float]]:
    return [[line[name] for name in SAME] for line in steps_of(job)]


def events(job: Job) -> list[str]:
    path = job.folder / "events.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def tokenizer(plan, tmp_path_factory) -> StageSpec:
    spec = plan("tokenizer", tmp_path_factory.mktemp("tokenizer"))
    finish(spec)
    return spec


@pytest.fixture(scope="module")
def spec_of(tokenizer) -> Callable[..., StageSpec]:
    def make(place: Path, recipe: str = THOROUGH) -> StageSpec:
        parents = {"tokenizer": tokenizer.artifact}
        return plan_stage(recipe, "pretrain", store=str(place / "store"), home=str(place / "home"), parents=parents)

    return make


@pytest.fixture(scope="module")
def undisturbed(spec_of, tmp_path_factory) -> StageSpec:
    spec = spec_of(tmp_path_factory.mktemp("undisturbed"))
    finish(spec)
    return spec


@pytest.mark.slow
def test_killed_again_and_again_to_the_bit(spec_of, undisturbed, tmp_path):
    """The whole group, one rank, the supervisor; a checkpoint damaged meanwhile; into a source's second epoch."""
    spec = spec_of(tmp_path)
    job = submit(spec)
    checkpoints = job.folder / "checkpoints"
    wait_for_step(job, 9)
    until((checkpoints / "step-00000008").exists, "step 8 is saved")
    os.killpg(lease_of(job).pid, signal.SIGKILL)
    until(lambda: job.status().state == "lost", "the job counts as lost")
    part = next((checkpoints / "step-00000008").glob("*rank_1_*optim_states.pt"))
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])

    submit(spec)
    wait_for_step(job, 14)
    assert any("checkpoint_skipped" in line and "step-00000008" not in line for line in events(job))
    note = next(line["note"] for line in steps_of(job) if "note" in line)
    assert "step 8" in note and "bytes instead of" in note
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    until(lambda: any("ranks_restarted" in line for line in events(job)), "the supervisor starts the ranks again")
    assert lease_of(job).token == 2

    wait_for_step(job, 18)
    supervisor, left = lease_of(job).pid, ranks_of(job)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: not any(map(psutil.pid_exists, left)), "the ranks end without their supervisor")
    assert job.status().state == "lost"

    finish(spec)
    assert lease_of(job).token == 3
    assert figures(job) == figures(Job.load(undisturbed.job))
    assert read_artifact(spec.artifact).hash == read_artifact(undisturbed.artifact).hash


def test_the_second_epoch_was_reached(tokenizer, undisturbed):
    """Otherwise the test above would show less than it says."""
    config = undisturbed.config
    assert isinstance(config, PretrainStage)
    source = MixedDocuments(TokenShards(Path(tokenizer.artifact) / "tokens", "train"), config.mixture)
    taken = 9 * config.sequences_per_step(64) * config.mixture[2].weight / sum(part.weight for part in config.mixture)
    assert source.streams[2].sequences < taken, "the smallest part began anew before the first kill"


@pytest.mark.slow
def test_other_numbers_of_ranks(spec_of, tmp_path):
    """2 → 1 → 2 ranks through universal checkpoints: the losses of an undisturbed run, within tolerance."""
    reference = spec_of(tmp_path / "reference", RECIPE)
    finish(reference)
    spec = spec_of(tmp_path / "elastic", RECIPE)
    job = submit(spec)
    for ranks, step in ((1, 9), (2, 17)):
        wait_for_step(job, step)
        until((job.folder / "checkpoints" / f"step-{step - 1:08d}").exists, "it is saved")
        os.killpg(lease_of(job).pid, signal.SIGKILL)
        until(lambda: job.status().state == "lost", "the job counts as lost")
        submit(spec, ranks=ranks)
        until(lambda: ranks_of(job), "the ranks are there")
        assert len(ranks_of(job)) == ranks
    assert job.wait(PATIENCE).state == "succeeded", job.log.read_text()[-3000:]
    expected, found = steps_of(Job.load(reference.job)), steps_of(job)
    assert [line["tokens"] for line in found] == [line["tokens"] for line in expected]
    losses, wanted = ([line["loss"] for line in lines] for lines in (found, expected))
    assert losses[:8] == wanted[:8]
    assert losses == pytest.approx(wanted, rel=1e-6), "sums in another order, no more"
    assert sum("checkpoint_converted" in line for line in events(job)) == 2


SUBMIT = """
import sys
from pathlib import Path
from tasks.training.job import submit
from tasks.training.plan import StageSpec
spec = StageSpec.model_validate_json(Path(sys.argv[1]).read_text())
while not Path(sys.argv[2]).exists():
    pass
print(submit(spec).lease().token)
"""


@pytest.mark.slow
def test_two_submitters_and_an_owner_that_comes_back(spec_of, undisturbed, tmp_path, monkeypatch):
    """Two processes submit at once: one job. Its owner is stopped like a machine that hangs, on a host that nobody can
    reach: another takes over, and when the first wakes, all that it still wants to write is refused."""
    spec = spec_of(tmp_path)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    arguments = [sys.executable, "-c", SUBMIT, str(tmp_path / "spec.json"), str(tmp_path / "go")]
    pair = [subprocess.Popen(arguments, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    time.sleep(3)  # both are at the gate
    (tmp_path / "go").touch()
    assert [process.communicate(timeout=PATIENCE)[0].strip() for process in pair] == ["1", "1"]

    job = Job.load(spec.job)
    wait_for_step(job, 5)
    assert len(group_of(job)) == 3
    old = lease_of(job).pid
    sleepers = group_of(job)
    os.killpg(old, signal.SIGSTOP)
    try:
        monkeypatch.setattr(jobs, "STALE_AFTER", 2.0)
        monkeypatch.setattr(socket, "gethostname", lambda: "another host")
        until(lambda: job.status().state == "lost", "the stopped owner counts as lost")
        assert lease_of(submit(spec)).token == 2
        monkeypatch.setattr(jobs, "STALE_AFTER", 60.0)
        assert sorted(sleepers) == sorted(pid for pid in sleepers if psutil.pid_exists(pid)), "nobody could end them"
        wait_for_step(job, 9)
        os.killpg(old, signal.SIGCONT)
        until(lambda: not any(_lives(pid) for pid in sleepers), "the old owner gives up")
        assert job.wait(PATIENCE).state == "succeeded", job.log.read_text()[-3000:]
    finally:
        if any(_lives(pid) for pid in sleepers):
            os.killpg(old, signal.SIGKILL)
    assert "was replaced (token 2)" in job.log.read_text()
    assert figures(job) == figures(Job.load(undisturbed.job))
    assert read_artifact(spec.artifact).hash == read_artifact(undisturbed.artifact).hash


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_rank_that_is_killed_every_time_fails_the_job(spec_of, tmp_path):
    """No endless restarts: after three the job fails, and says by what signal."""
    spec = spec_of(tmp_path)
    job = submit(spec)
    until(lambda: job.lease() and _kill_a_rank(job) == "ended", "the job gives up")
    status = job.status()
    assert status.state == "failed" and "killed by signal 9" in status.message and "4. time" in status.message


def _kill_a_rank(job: Job) -> str:
    if job.status().state != "running":
        return "ended"
    with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended meanwhile
        for pid in ranks_of(job)[:1]:
            os.kill(pid, signal.SIGKILL)
    return "goes on"
