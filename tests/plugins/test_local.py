"""The parts of the local runner: lock, processes, Airflow's home, machine, words."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.airflow_home import api_server_environment, at_port, password, prepare
from plugins.local.api import TIMEOUT
from plugins.local.follow import complaints
from plugins.local.lock import Held, hold
from plugins.local.machine import check_machine
from plugins.local.summary import corpus_lines, place_lines, stage_lines
from plugins.local.wording import facts, steps
from tasks.errors import ConfigError
from tasks.settings import REPOSITORY, settings

# A child in a session of its own that ignores SIGTERM and whose parent has ended: the hardest to find and to end.
STRAY = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
MIDDLE = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
OWNER = """
import subprocess, sys
from plugins.local.processes import adopt_orphans, end_descendants
adopt_orphans()
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True)
sys.stdin.read()
print("clean" if end_descendants(grace=0.5) else "left", flush=True)
"""
HOLDER = """
import sys, time
from pathlib import Path
from plugins.local.lock import hold
with hold(Path(sys.argv[1]), note="process 7, since noon"):
    print("held", flush=True)
    time.sleep(600)
"""


LEAVER = """
import signal, time
import plugins.local.__main__ as runner
signal.signal(signal.SIGTERM, runner._leave)
print("up", flush=True)
time.sleep(600)
"""


def python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def runner(command: str, *options: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """`python -m plugins.local …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "plugins.local", command, *options],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def holder(tmp_path: Path) -> "Iterator[subprocess.Popen[str]]":
    process = python(HOLDER, str(tmp_path / "lock"))
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_lock_names_its_holder_and_ends_with_it(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    with pytest.raises(Held, match="process 7, since noon"), hold(tmp_path / "lock"):
        pass
    holder.kill()
    with hold(tmp_path / "lock", wait=10.0):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="child subreapers exist on Linux only")
def test_detached_descendants_that_ignore_sigterm_are_ended() -> None:
    owner = python(OWNER, MIDDLE, STRAY)
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == "up\n"
    strays: list[psutil.Process] = []
    deadline = time.monotonic() + 30
    while not strays and time.monotonic() < deadline:  # until its own parent has ended, it is no child of the owner
        strays = [child for child in psutil.Process(owner.pid).children() if os.getsid(child.pid) == child.pid]
    (stray,) = strays
    owner.stdin.close()
    assert owner.stdout.readline() == "clean\n"
    assert not stray.is_running()
    assert owner.wait(timeout=10) == 0


def test_secrets_are_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    folder, environment = prepare(settings(home=tmp_path))
    for name in ("passwords.json", "secrets.json"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    again = prepare(settings(home=tmp_path))[1]
    secret = ("AIRFLOW__CORE__FERNET_KEY", "AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET")
    assert [environment[key] for key in secret] == [again[key] for key in secret]
    assert len(password(folder)) >= 16
    assert environment["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor", "foreign Airflow settings stay outside"
    assert int(environment["AIRFLOW__CORE__PARALLELISM"]) <= 4
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    address = at_port(8123)
    assert address["AIRFLOW__API__PORT"] == "8123"
    assert ":8123/execution/" in address["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]


def test_the_api_server_waits_less_for_the_database_than_its_clients_for_it(tmp_path: Path) -> None:
    """A server whose event loop waits for its own request stands still for as long; see the function."""
    _, environment = prepare(settings().model_copy(update={"home": tmp_path}))
    name = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
    served = api_server_environment(environment)
    assert {key for key in served if served[key] != environment.get(key)} == {name}
    database, seconds = served[name].split("?timeout=")
    assert environment[name].startswith(database + "?timeout=") and float(seconds) < TIMEOUT / 10


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine(tmp_path)
    monkeypatch.setattr("plugins.local.machine.FREE_BYTES", 10**18)
    with pytest.raises(ConfigError, match=r"GB free; .* GB are needed: free some, or name another folder"):
        check_machine(tmp_path)


def test_too_little_memory_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugins.local.machine.MEMORY_BYTES", 10**18)
    with pytest.raises(ConfigError, match=r"GB of memory are available; .* GB are needed: end other programs"):
        check_machine(tmp_path)


@pytest.mark.parametrize(("command", "home"), [("run", "taken"), ("up", "/proc/athanor")])
def test_a_home_that_cannot_be_written_is_one_clear_line(tmp_path: Path, command: str, home: str) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    done = runner(command, ATHANOR_HOME=str(tmp_path / home))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr and "name another with ATHANOR_HOME" in done.stderr


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        (["--recipe", "tinny"], {}, "did you mean 'tiny'"),
        ([], {"ATHANOR_RECIPI": "tiny"}, "unknown variable ATHANOR_RECIPI; did you mean ATHANOR_RECIPE?"),
        (["--port", "70000"], {}, "'airflow_port': Input should be less than or equal to 65535"),
        (["--data", "no-such-folder"], {}, "no-such-folder"),
        (["--data", "s3://"], {}, "s3://: names no bucket; expected s3://bucket/prefix"),
        (["--data", "ftp://somewhere/else"], {}, "ftp://somewhere/else"),
    ],
)
def test_wrong_use_is_one_clear_line(
    tmp_path: Path, options: list[str], variables: dict[str, str], message: str
) -> None:
    done = runner("run", *options, ATHANOR_HOME=str(tmp_path), **variables)
    assert done.returncode in (1, 2)
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr


def test_a_second_runner_says_who_works(tmp_path: Path) -> None:
    with hold(tmp_path / "run.lock", note="process 7, since noon"):
        done = runner("run", ATHANOR_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "another `make run` works" in done.stderr and "process 7, since noon" in done.stderr


def test_down_without_up_says_so(tmp_path: Path) -> None:
    done = runner("down", ATHANOR_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "nothing is up\n")


def test_signals_to_the_runner_are_exit_statuses() -> None:
    process = python(LEAVER)
    assert process.stdout is not None
    process.stdout.readline()
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < 10


def test_what_a_failed_task_complained_of() -> None:
    records: list[dict[str, Any]] = [
        {"event": "::group::Log message source details"},
        {"event": "GitWildMatchPattern is deprecated", "level": "warning", "logger": "py.warnings"},
        {"event": "reading", "level": "info"},
        {
            "event": "Task failed with exception",
            "level": "error",
            "error_detail": [{"exc_type": "DataError", "exc_value": "part-000: row 7\nis no object"}],
        },
    ]
    assert complaints(records) == ["Task failed with exception", "DataError: part-000: row 7", "is no object"]
    assert complaints(records[2:3]) == ["reading"]


REPORT = {
    "snapshot": "2026-01-15",
    "read": 1000,
    "kept": 600,
    "dropped": 390,
    "quarantined": 10,
    "bytes": {"read": 6_000_000, "kept": 4_000_000},
    "reasons": {f"rule_{number}": {"documents": number, "bytes": 1} for number in range(1, 12)},
    "problems": [{"shard": "web/part-000.jsonl", "what": "row 7 is no object", "remedy": "repair the row"}],
}


def test_summary_of_a_corpus() -> None:
    text = "\n".join(corpus_lines(REPORT))
    assert "1,000 read = 600 kept + 390 dropped + 10 quarantined" in text
    assert text.index("rule_11") < text.index("rule_10"), "the rules that drop most come first"
    assert "and 3 more rules" in text
    assert "web/part-000.jsonl: row 7 is no object; repair the row" in text


def test_summary_of_a_stage() -> None:
    trained: dict[str, list[Any]] = {
        "sft.train": [{"kind": "sft", "reused": True}],
        "sft.evaluate": [{"metrics": {"measure": "nats a token", "before": 4.0, "after": 2.5, "tokens": 9000}}],
    }
    (line,) = stage_lines("sft", trained)
    assert "4 → 2.5 nats a token; tokens 9,000" in line and "(reused)" in line
    assert stage_lines("pretrain", trained) == ["stage pretrain    skipped"]


def test_summary_says_which_generation_a_model_is_of(tmp_path: Path) -> None:
    trained: dict[str, list[Any]] = {"rlhf.train": [{"artifact": "store/rlhf"}], "rlhf.evaluate": [{"metrics": {}}]}
    config = settings(home=tmp_path)
    assert "model        store/rlhf  (candidate)" in place_lines(config, "2026-01-15", {}, trained, "rlhf")
    trained["rlhf.evaluate"] = [{"metrics": {"generation": "Gen-0"}}]
    assert "model        store/rlhf  (candidate, Gen-0)" in place_lines(config, "2026-01-15", {}, trained, "rlhf")


def test_rates_leave_reused_work_out() -> None:
    done = {"documents": 1000, "bytes": 20_000_000, "shards": 4, "reused": 0}
    assert "100 documents/s, 2.0 MB/s" in facts(done, 10.0)
    assert facts({**done, "reused": 4}, 10.0).endswith("reused")
    assert json.dumps(facts(None, 1.0)) == '""'


def test_progress_of_a_job() -> None:
    assert steps({"step": 40, "steps": 120, "loss": 5.1234, "tokens_per_second": 2980.4}) == (
        "step 40 of 120, loss 5.123, 2,980 tokens/s"
    )
    assert steps({"step": 2, "steps": 3, "what": "encoding the corpus"}) == "step 2 of 3, encoding the corpus"
