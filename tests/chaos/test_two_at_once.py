"""Two runs on one output: each piece of work is done once; nobody reads a mixture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tasks.corpus.artifact import read_artifact, unchanged, verify_artifact
from tasks.corpus.lease import Lease
from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.errors import DataError, StorageError
from tasks.settings import CONTRACTS, REPOSITORY
from tasks.tokens.documents import read_documents
from tests.chaos.runs import SNAPSHOT, curate, english, tree

SHARDS = 4

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    for shard in range(SHARDS):
        write_shard(folder / "web" / f"{shard}.jsonl.zst", [{"text": english(9 * shard + n)} for n in range(10)])
    return folder


@pytest.fixture(scope="module")
def undisturbed(landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed")
    curate(landing, output)
    return output


@pytest.fixture(scope="module")
def stricter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that keeps nothing."""
    config = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text())
    config["rules"]["en"]["bounds"]["gopher_words"]["min"] = 10_000
    path = tmp_path_factory.mktemp("config") / "strict.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def start(landing: Path, output: Path, config: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tasks", "curate", "--workers", "1", "--snapshot", SNAPSHOT, "--config", config]
    return subprocess.Popen(
        [*command, "--input", str(landing), "--output", str(output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def test_of_two_commands_one_does_the_work_and_the_other_waits_and_finds_it(
    landing: Path, undisturbed: Path, tmp_path: Path
) -> None:
    processes = [start(landing, tmp_path / "out", "default") for _ in range(2)]
    printed = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert "Traceback" not in "".join(printed)
    for step in ("signals", "verdicts"):
        lines = [[line for line in text.splitlines() if line.startswith(f"{step} group-")] for text in printed]
        assert [len(found) for found in lines] == [SHARDS, SHARDS], printed
        assert sum("reused" in line for found in lines for line in found) == SHARDS, "each shard is worked on once"
    told = [text for text in printed if "waiting for its end" in text]
    assert [
        f"curation of snapshot {SNAPSHOT}, process {worker.pid} on " in "".join(told) for worker in processes
    ].count(True) == 1, printed
    assert tree(tmp_path / "out") == tree(undisturbed)
    assert read_artifact(str(tmp_path / "out")).hash == read_artifact(str(undisturbed)).hash


def test_two_configurations_do_not_mix(landing: Path, undisturbed: Path, stricter: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    plan = steps.inventory(str(landing), str(output), SNAPSHOT)
    with steps.whole_run(str(output), plan["work"]):
        other = start(landing, output, str(stricter))
        printed = other.communicate(timeout=300)[1]
        assert other.returncode == 1
        assert f"process {os.getpid()} on " in printed and printed.count("another run is at work here") == 1
        assert curate(landing, output)["hash"] == read_artifact(str(undisturbed)).hash
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_a_group_that_is_worked_on_twice_at_once_is_done_once(landing: Path, undisturbed: Path, tmp_path: Path) -> None:
    """As by two schedulers, or when a task that counted as lost is still at work."""
    output = tmp_path / "out"
    steps.inventory(str(landing), str(output), SNAPSHOT)
    for step in ("compute_signals", "write_verdicts"):
        code = (
            f"from tasks.curation.steps import {step}; print({step}({str(output)!r}, 'group-0', workers=1)['reused'])"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            )
            for _ in range(2)
        ]
        reused = sorted(int(process.communicate(timeout=300)[0].splitlines()[-1]) for process in processes)
        assert reused == [0, SHARDS]
        if step == "compute_signals":
            steps.cluster_duplicates(str(output))
    steps.publish(str(output))
    assert tree(output) == tree(undisturbed)


def test_a_run_that_another_has_overtaken_says_so(landing: Path, stricter: Path, tmp_path: Path) -> None:
    plan = steps.inventory(str(landing), str(tmp_path), SNAPSHOT)
    steps.inventory(str(landing), str(tmp_path), SNAPSHOT, curation=str(stricter))
    with pytest.raises(StorageError, match="another run has begun here since"):
        steps.whole_run(str(tmp_path), plan["work"]).__enter__()


def test_publishing_waits_for_nobody_and_is_refused_while_another_works(landing: Path, tmp_path: Path) -> None:
    curate(landing, tmp_path)
    hold = f"Lease({str(tmp_path)!r}, 'x', 'a test').__enter__(); print('held', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", f"from tasks.corpus.lease import Lease; {hold}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        for step in (steps.publish, steps.cluster_duplicates):
            with pytest.raises(StorageError, match=f"a test, process {other.pid}"):
                step(str(tmp_path))
    finally:
        other.kill()
        other.wait()
    steps.publish(str(tmp_path))
    with Lease(str(tmp_path), "y", "another test"):
        verify_artifact(str(tmp_path))


def test_a_reader_never_takes_a_mixture_for_a_corpus(landing: Path, stricter: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    curate(landing, output)
    reading = read_documents(str(output))
    first = next(reading)
    assert first.text
    plan = steps.inventory(str(landing), str(output), SNAPSHOT, curation=str(stricter))
    with unchanged(str(output)):  # signals alone replace nothing
        steps.compute_signals(str(output), plan["groups"][0])
        steps.cluster_duplicates(str(output))
    steps.write_verdicts(str(output), plan["groups"][0])
    with pytest.raises(DataError, match="no artifact here"):
        next(read_documents(str(output)))
    with pytest.raises(DataError, match="published again while it was read"):
        list(reading)
    steps.publish(str(output))
    assert list(read_documents(str(output))) == []
