"""The runner's requests against a server that fails for a while, as Airflow's does when SQLite refuses a write."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from plugins.local import api
from plugins.local.api import Api, ApiError


class Flaky(BaseHTTPRequestHandler):
    """Logs in anyone; answers any other request by the next of `answers`: a status, or nothing at all for 0."""

    answers: ClassVar[list[int]] = []
    asked: ClassVar[list[tuple[str, str, dict[str, str]]]] = []

    def do_any(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        status = 201
        if self.path != "/auth/token":
            self.asked.append((self.command, self.path, body))
            status = self.answers.pop(0)
        if status:
            data = json.dumps({"access_token": "t", "detail": "database is locked", **body}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_any

    def log_message(self, *_: object) -> None:
        """Nothing: pytest shows what was asked."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(api.time, "sleep", lambda _: None)
    Flaky.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as flaky:
        threading.Thread(target=flaky.serve_forever, daemon=True).start()
        yield Api(f"http://127.0.0.1:{flaky.server_port}", "admin", "secret")
        flaky.shutdown()


def test_what_may_be_sent_twice_is_sent_until_the_server_is_well(server: Api) -> None:
    Flaky.answers = [500, 0, 503, 200]
    server.pause("curate_corpus", False)
    assert [asked[0] for asked in Flaky.asked] == ["PATCH"] * 4


def test_a_run_is_triggered_once_though_its_answer_was_lost(server: Api) -> None:
    Flaky.answers = [500, 0, 409]
    run_id = server.trigger("curate_corpus", {"snapshot": "2026-01-15"}, "2026-01-15", "by hand")
    assert {asked[2]["dag_run_id"] for asked in Flaky.asked} == {run_id} and len(Flaky.asked) == 3


def test_a_pool_is_made_though_the_answer_was_lost(server: Api) -> None:
    Flaky.answers = [500, 0, 409]
    server.ensure_pool("accelerator", 1, "one training job at a time")
    assert [asked[1] for asked in Flaky.asked] == ["/api/v2/pools"] * 3


def test_what_makes_something_is_sent_once(server: Api) -> None:
    Flaky.answers = [500]
    with pytest.raises(ApiError, match=r"answered 500 to POST .*database is locked"):
        server.post("/backfills", {})
    assert Flaky.answers == []


def test_a_refusal_is_final(server: Api) -> None:
    Flaky.answers = [403]
    with pytest.raises(ApiError, match="answered 403 to GET"):
        server.dag("curate_corpus")


def test_a_login_that_ran_out_is_renewed_once(server: Api) -> None:
    Flaky.answers = [200, 401, 201, 401, 401]
    server.dag("curate_corpus")
    server.post("/backfills", {"dag_id": "curate_corpus"})
    with pytest.raises(ApiError, match="answered 401"):
        server.dag("curate_corpus")


def test_a_server_that_stays_ill_is_given_up(server: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 50))
    monkeypatch.setattr(api.time, "monotonic", lambda: next(now))
    Flaky.answers = [500] * 9
    with pytest.raises(ApiError, match="answered 500 to PATCH"):
        server.pause("curate_corpus", True)
    assert len(Flaky.asked) > 2
