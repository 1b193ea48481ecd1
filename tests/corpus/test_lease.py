"""One holder at a time, and a holder that is gone is succeeded."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.corpus import lease
from tasks.corpus.lease import Lease
from tasks.corpus.storage import open_store, read_json, write_json
from tasks.errors import StorageError
from tasks.settings import REPOSITORY

HOLD = """
import sys, time
from tasks.corpus.lease import Lease
from tasks.errors import StorageError
try:
    with Lease(sys.argv[1], sys.argv[2], "a test", exclusive=sys.argv[3] == "exclusive"):
        print("held", flush=True)
        sys.stdin.readline()
except StorageError as error:
    print(error, flush=True)
"""


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "place") if request.param == "folder" else request.getfixturevalue("bucket")


def other(place: str, work: str, kind: str = "exclusive") -> "subprocess.Popen[str]":
    """A real process that tries to hold the place until a line is sent to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, place, work, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    return process


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_is_refused_and_told_of_the_first(place: str) -> None:
    first = other(place, "a")
    assert said(first) == "held"
    for work in ("a", "b"):
        words = rf"another run is at work here: a test, process {first.pid} on "
        with pytest.raises(StorageError, match=words), Lease(place, work, "mine"):
            raise AssertionError("entered")
    first.communicate("\n", timeout=30)
    with Lease(place, "b", "mine"):
        assert read_json(f"{place}/lease.json")["what"] == "mine"
    assert not open_store(place).exists("lease.json")


def test_who_does_the_same_may_share(place: str) -> None:
    first = other(place, "a", "shared")
    assert said(first) == "held"
    with Lease(place, "a", "mine", exclusive=False):
        first.communicate("\n", timeout=30)
    for work, exclusive in (("b", False), ("a", True)):
        second = other(place, "a", "shared")
        assert said(second) == "held"
        with pytest.raises(StorageError, match="another run"), Lease(place, work, "mine", exclusive=exclusive):
            raise AssertionError("entered")
        second.communicate("\n", timeout=30)


def test_a_killed_holder_is_succeeded_at_once(place: str) -> None:
    first = other(place, "a")
    assert said(first) == "held"
    first.send_signal(signal.SIGKILL)
    first.wait(timeout=30)
    with Lease(place, "b", "mine"):
        assert read_json(f"{place}/lease.json")["work"] == "b"


def test_a_silent_holder_elsewhere_is_succeeded_in_time(place: str) -> None:
    with Lease(place, "a", "mine"):
        record = {**read_json(f"{place}/lease.json"), "machine": "elsewhere", "work": "b"}
    write_json(f"{place}/lease.json", record)
    with pytest.raises(StorageError, match="on elsewhere since"):
        Lease(place, "a", "mine").__enter__()
    write_json(f"{place}/lease.json", {**record, "beat": time.time() - lease.EXPIRES - 1})
    with Lease(place, "a", "mine"):
        pass


def test_who_lost_it_is_told_before_it_writes(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    with pytest.raises(StorageError, match="must not write any more"), Lease(place, "a", "mine") as held:
        held.check()
        write_json(f"{place}/lease.json", {**read_json(f"{place}/lease.json"), "machine": "elsewhere", "work": "b"})
        time.sleep(1)
        with pytest.raises(StorageError, match="on elsewhere"):
            held.check()
    assert read_json(f"{place}/lease.json")["work"] == "b"  # the successor's record is left alone


def test_the_heartbeat_takes_up_what_a_sharer_left(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    with Lease(place, "a", "mine", exclusive=False):
        open_store(place).delete("lease.json")
        deadline = time.monotonic() + 20
        while not open_store(place).exists("lease.json"):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_of_many_at_once_one_gets_it(place: str) -> None:
    processes = [other(place, str(n)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(said, processes))
    for process in processes:
        process.communicate("\n", timeout=30)
    assert sorted(answer == "held" for answer in answers) == [False, False, False, True]
