"""Two `make run` at once: in one home the second is told of the first; two homes on one store do each piece once."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.corpus.registry import read_registry
from tasks.training.job import Job
from tests.chaos.calm import Calm, corpus_of, weights_of
from tests.end_to_end.runner import LIMIT, Runner

pytestmark = pytest.mark.slow


def test_two_homes_on_one_store_do_each_piece_once(calm: Calm, tmp_path: Path) -> None:
    runners = [Runner(tmp_path / name, calm.landing, str(tmp_path / "store")) for name in ("one", "two")]
    processes = [runner.start("run") for runner in runners]
    lock, deadline = runners[0].home / "run.lock", time.monotonic() + LIMIT
    while not (lock.exists() and f"process {processes[0].pid}" in lock.read_text()):
        assert processes[0].poll() is None and time.monotonic() < deadline, "the first run holds no lock"
        time.sleep(0.05)
    third = runners[0].start("run")
    told = runners[0].output(third)
    assert third.returncode == 1 and "another `make run` works in" in told, told
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(lambda pair: pair[0].output(pair[1]), zip(runners, processes, strict=True)))
    assert [process.returncode for process in processes] == [0, 0], texts
    assert [runner.left() for runner in runners] == [[], []]
    ports = [re.search(r"Airflow is ready at http://127\.0\.0\.1:(\d+)", text) for text in texts]
    assert len({port[1] for port in ports if port}) == 2, texts

    store = str(tmp_path / "store")
    assert (corpus_of(store), weights_of(store)) == (calm.corpus, calm.weights)
    candidate = read_registry(store, "micro")["candidate"]["uri"]
    assert all(candidate in text for text in texts)
    trained = [
        Job.load(folder).spec.stage
        for runner in runners
        for folder in (runner.home / "jobs").glob("*")
        if (folder / "progress.jsonl").exists()
    ]
    assert sorted(trained) == ["pretrain", "sft", "tokenizer"], "each stage was trained in one of the homes"
    lines = [re.findall(r"✓ compute_signals\[.*", text) for text in texts]
    assert lines[0] and len(lines[0]) == len(lines[1]), texts
    assert sum("reused" in line for line in lines[0] + lines[1]) == len(lines[0]), "each group is measured once"
