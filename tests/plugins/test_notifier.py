"""Notifications: one message for all channels, and a channel that fails harms nobody; retries by kind of error."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import StreamRequestHandler, TCPServer
from types import SimpleNamespace
from typing import Any

import pytest

from plugins.notifier import AthanorNotifier, deadline_missed, message, tell
from plugins.retries import ByKindOfError
from tasks.errors import ClusterError, ConfigError, DataError, StorageError
from tasks.settings import Settings

RUN = SimpleNamespace(dag_id="curate_corpus", run_id="manual__1")
TASK = SimpleNamespace(dag_id="curate_corpus", run_id="manual__1", task_id="compute_signals", map_index=3, try_number=2)
FAILED: dict[str, Any] = {"ti": TASK, "dag_run": RUN, "exception": DataError("web/1.jsonl: damaged")}


@pytest.fixture
def posted() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Address of a webhook, and what it was sent."""
    taken: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Nothing: the test looks at what was taken."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", taken
        server.shutdown()


def test_a_failure_is_told_with_place_reason_and_link(
    posted: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address, taken = posted
    monkeypatch.setenv("ATHANOR_NOTIFY_WEBHOOK", address)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example/")
    with caplog.at_level(logging.WARNING):
        AthanorNotifier("failed").notify(FAILED)  # type: ignore[arg-type]
    assert "failed: curate_corpus, compute_signals[3]: web/1.jsonl: damaged" in caplog.text
    (sent,) = taken
    assert (sent["what"], sent["task_id"], sent["map_index"], sent["try"]) == ("failed", "compute_signals", 3, 2)
    assert sent["words"] == "web/1.jsonl: damaged"
    assert sent["link"].endswith("/dags/curate_corpus/runs/manual__1/tasks/compute_signals/mapped/3")
    assert sent["text"].startswith("failed: curate_corpus, compute_signals[3]: web/1.jsonl: damaged http://airflow.example/dags/")


def test_a_missed_deadline_names_the_run(
    posted: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, taken = posted
    monkeypatch.setenv("ATHANOR_NOTIFY_WEBHOOK", address)
    asyncio.run(deadline_missed({"dag_run": {"dag_id": "train_cascade", "dag_run_id": "r"}}, hours=24.0))
    assert taken[0]["text"].startswith("deadline missed: train_cascade: has not ended 24 hours after it was queued")
    assert taken[0]["link"].endswith("/dags/train_cascade/runs/r")
    ended = {"dag_id": "train_cascade", "dag_run_id": "s", "state": "failed", "end_date": "2026-01-01T00:00:00Z"}
    asyncio.run(deadline_missed({"dag_run": ended}, hours=24.0))
    assert len(taken) == 1, "a run that failed in time was told of then"


def test_mail_goes_to_the_server_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Mailbox(StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                lines.append(line.decode().strip())
                said = lines[-1].upper()
                self.wfile.write({"DATA": b"354 go on\r\n", "QUIT": b"221 bye\r\n"}.get(said, b"250 well\r\n"))
                if said == "DATA":
                    while (text := self.rfile.readline()) != b".\r\n":
                        lines.append(text.decode().strip())
                    self.wfile.write(b"250 taken\r\n")
                if said == "QUIT":
                    return

    with TCPServer(("127.0.0.1", 0), Mailbox) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        port = server.server_address[1]
        monkeypatch.setenv("AIRFLOW_CONN_ATHANOR_SMTP", f"smtp://127.0.0.1:{port}/?from=athanor%40example.org")
        told = tell(message("failed", FAILED), Settings(notify_mail="ada@example.org"))
    assert told == ["log", "mail"]
    assert "Subject: Athanor: failed: curate_corpus, compute_signals[3]" in lines
    assert {"From: athanor@example.org", "To: ada@example.org", "web/1.jsonl: damaged"} <= set(lines)


def test_a_channel_that_does_not_work_is_said_so_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        told = tell(message("failed", FAILED), Settings(notify_webhook="http://127.0.0.1:1/", notify_mail="a@b"))
    assert told == ["log"]
    assert "the notification by webhook was not taken" in caplog.text
    assert "the notification by mail was not taken" in caplog.text


@pytest.mark.parametrize("error", [ConfigError("c"), DataError("d"), MemoryError()])
def test_what_would_fail_again_fails_at_once_with_the_reason(error: Exception) -> None:
    decision = ByKindOfError().evaluate(error, 1, 3)
    assert decision.action.value == "fail"
    assert "clear" in (decision.reason or "")


@pytest.mark.parametrize(
    "error", [StorageError("s"), ClusterError("c"), ConnectionResetError(), TimeoutError(), KeyError("unknown")]
)
def test_what_may_come_back_is_waited_for_ever_longer(error: Exception) -> None:
    decisions = [ByKindOfError().evaluate(error, number, 9) for number in (1, 2, 3, 9)]
    if isinstance(error, KeyError):
        assert all(decision.action.value == "default" for decision in decisions), "an unknown kind: as the task says"
        return
    waits = [decision.retry_delay for decision in decisions]
    assert waits == [timedelta(seconds=30), timedelta(seconds=60), timedelta(seconds=120), timedelta(minutes=15)]
    assert all("come back" in (d.reason or "") or "later" in (d.reason or "") for d in decisions)
