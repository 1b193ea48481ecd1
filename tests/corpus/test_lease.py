"""One holder at a time, and a holder that is gone is succeeded."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.corpus import lease
from tasks.corpus.lease import Lease
from tasks.corpus.storage import read_json, write_json
from tasks.errors import StorageError
from tasks.settings import REPOSITORY

HOLD = """
import sys
from tasks.corpus.lease import Lease
from tasks.errors import StorageError
try:
    kind = sys.argv[3]
    owner = "a job" if kind == "owned" else ""
    part = kind if kind.startswith("part") else ""
    with Lease(sys.argv[1], sys.argv[2], "a test", part=part, owner=owner):
        print("held", flush=True)
        sys.stdin.readline()
except StorageError as error:
    print(error, flush=True)
"""


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "place") if request.param == "folder" else request.getfixturevalue("bucket")


def other(place: str, work: str, kind: str = "whole") -> "subprocess.Popen[str]":
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


def holders(place: str) -> list[dict[str, Any]]:
    return read_json(f"{place}/lease.json")["holders"]


def overwrite(place: str, *found: dict[str, Any]) -> None:
    write_json(f"{place}/lease.json", {**read_json(f"{place}/lease.json"), "holders": list(found)})


def test_a_second_is_refused_and_told_of_the_first(place: str) -> None:
    first = other(place, "a")
    assert said(first) == "held"
    for work in ("a", "b"):
        words = rf"another run is at work here: a test, process {first.pid} on "
        with pytest.raises(StorageError, match=words), Lease(place, work, "mine"):
            raise AssertionError("entered")
    first.communicate("\n", timeout=30)
    with Lease(place, "b", "mine"):
        assert [holder["what"] for holder in holders(place)] == ["mine"]
    assert holders(place) == []


def test_parts_of_one_work_are_held_apart_and_each_keeps_the_others_out_until_it_ends(place: str) -> None:
    first, second = other(place, "a", "part 1"), other(place, "a", "part 2")
    assert (said(first), said(second)) == ("held", "held")
    for ending, part in ((first, "part 1"), (second, "part 2")):
        for work, wanted in (("b", ""), ("b", "part 3"), ("a", ""), ("a", part)):
            with pytest.raises(StorageError, match="another run"), Lease(place, work, "mine", part=wanted):
                raise AssertionError("entered")
        with Lease(place, "a", "mine", part="part 3"):
            ending.communicate("\n", timeout=30)
            assert ending.pid not in [holder["process"] for holder in holders(place)]
    with Lease(place, "b", "mine"):
        pass


def test_the_patient_wait_for_who_does_the_same_and_for_nobody_else(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(lease, "POLL", 0.05)
    first = other(place, "a")
    assert said(first) == "held"
    with pytest.raises(StorageError, match="another run"), Lease(place, "b", "mine", patient=True):
        raise AssertionError("entered")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: Lease(place, "a", "mine", patient=True).__enter__())
        time.sleep(0.5)
        assert not waiting.done()
        first.communicate("\n", timeout=30)
        with waiting.result(timeout=60):
            assert [holder["what"] for holder in holders(place)] == ["mine"]
    assert f"a test, process {first.pid} on " in caplog.text and "waiting for its end" in caplog.text


def test_a_killed_holder_is_succeeded_at_once(place: str) -> None:
    first = other(place, "a")
    assert said(first) == "held"
    first.send_signal(signal.SIGKILL)  # and not waited for: what is left of it, a zombie, holds nothing
    while psutil.Process(first.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    with Lease(place, "b", "mine"):
        assert [holder["work"] for holder in holders(place)] == ["b"]
    first.wait(timeout=30)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_machine_that_slept_does_not_lose_what_it_holds(place: str, where: str) -> None:
    """As it wakes all records are old, and who looks may be awake before the holder is; in another container, too."""
    first = other(place, "a")
    assert said(first) == "held"
    (holder,) = holders(place)
    holder = holder if where == "here" else {**holder, "machine": "elsewhere"}
    overwrite(place, {**holder, "beat": time.time() - lease.EXPIRES - 600})
    wakes = threading.Timer(1.5, overwrite, [place, {**holder, "beat": time.time()}])
    wakes.start()
    with pytest.raises(StorageError, match="another run is at work here: a test"), Lease(place, "b", "mine"):
        raise AssertionError("entered")
    wakes.join()
    first.communicate("\n", timeout=30)


def test_who_lives_and_stays_silent_is_succeeded(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WAKING", 2.0)
    first = other(place, "a")
    assert said(first) == "held"
    first.send_signal(signal.SIGSTOP)
    (holder,) = holders(place)
    overwrite(place, {**holder, "beat": time.time() - lease.EXPIRES - 1})
    looks: list[float] = []
    with Lease(place, "b", "mine", waiting=lambda: looks.append(time.monotonic())):
        assert looks, "who waits is asked whether to go on"
    first.kill()
    first.wait(timeout=30)


def test_a_silent_holder_elsewhere_is_succeeded_in_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "WAKING", 1.0)
    with Lease(place, "a", "mine"):
        (ours,) = holders(place)
    elsewhere = {**ours, "machine": "elsewhere", "work": "b"}
    overwrite(place, elsewhere)
    with pytest.raises(StorageError, match="on elsewhere since"):
        Lease(place, "a", "mine").__enter__()
    overwrite(place, {**elsewhere, "beat": time.time() - lease.EXPIRES - 1})
    with Lease(place, "a", "mine"):
        pass


@pytest.mark.parametrize("successor", ["at work", "ended"])
def test_who_lost_it_is_told_before_it_writes(place: str, monkeypatch: pytest.MonkeyPatch, successor: str) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    with pytest.raises(StorageError, match="must not write any more"), Lease(place, "a", "mine") as held:
        held.check()
        (ours,) = holders(place)
        left = [{**ours, "machine": "elsewhere", "work": "b"}] if successor == "at work" else []
        while held._lost is None:  # a beat on its way may write us in again
            overwrite(place, *left)
            time.sleep(0.1)
        with pytest.raises(StorageError, match="on elsewhere" if left else "another run was at work here"):
            held.check()
    assert holders(place) == left  # the successor's record is left alone


def test_the_next_of_the_same_owner_replaces_the_last(place: str) -> None:
    first = other(place, "a", "owned")
    assert said(first) == "held"
    with pytest.raises(StorageError, match="another run"), Lease(place, "a", "mine", owner="another job"):
        raise AssertionError("entered")
    with Lease(place, "a", "mine", owner="a job"):
        assert [holder["what"] for holder in holders(place)] == ["mine"]
        first.communicate("\n", timeout=30)
        assert [holder["what"] for holder in holders(place)] == ["mine"], "the last one's end changes nothing"


def test_of_many_at_once_one_gets_it(place: str) -> None:
    processes = [other(place, str(n)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(said, processes))
    for process in processes:
        process.communicate("\n", timeout=30)
    assert sorted(answer == "held" for answer in answers) == [False, False, False, True]


def test_of_many_with_a_part_each_all_are_named(place: str) -> None:
    processes = [other(place, "a", f"part {n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(said, processes)) == ["held"] * 4
    assert sorted(holder["process"] for holder in holders(place)) == sorted(process.pid for process in processes)
    for process in processes:
        process.communicate("\n", timeout=30)
    assert holders(place) == []
