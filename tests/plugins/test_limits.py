"""What is too large for the REST API is refused in words; everything else goes through unchanged."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from plugins.limits import BoundedBodies

Answer = tuple[bytes | None, list[dict[str, Any]]]


def asked(path: str, body: list[bytes], headers: list[tuple[bytes, bytes]]) -> Answer:
    """What the application was given (None: it was not asked), and what was sent back."""
    given: list[bytes] = []
    sent: list[dict[str, Any]] = []
    waiting = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(body)} for number, part in enumerate(body)
    ]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        more = True
        given.append(b"")
        while more:
            message = await receive()
            given[0] += message["body"]
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(BoundedBodies(application, limit=1000)(scope, receive, send))
    return (given[0] if given else None), sent


@pytest.mark.parametrize("body", [[b""], [b"x" * 1000], [b"x" * 500, b"y" * 500]])
def test_what_fits_arrives_whole(body: list[bytes]) -> None:
    given, sent = asked("/api/v2/dags/d/dagRuns", body, [(b"content-length", str(len(b"".join(body))).encode())])
    assert (given, sent[0]["status"]) == (b"".join(body), 200)


@pytest.mark.parametrize(
    "body, headers", [([b""], [(b"content-length", b"1001")]), ([b"x" * 600, b"y" * 600, b"never read"], [])]
)
def test_what_does_not_fit_is_refused_in_words(body: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
    given, sent = asked("/api/v2/dags/d/dagRuns", body, headers)
    assert (given, sent[0]["status"]) == (None, 413)
    assert "more than 1,000 bytes" in json.loads(sent[1]["body"])["detail"]


@pytest.mark.parametrize("path", ["/execution/xcoms", "/api/v2/variables", "/api/v2/dags/d/dagRuns/list"])
def test_other_requests_are_not_concerned(path: str) -> None:
    given, _ = asked(path, [b"x" * 5000], [])
    assert given == b"x" * 5000


@pytest.mark.parametrize("path", ["/api/v2/backfills", "/api/v2/assets/events", "/api/v2/assets/3/materialize"])
def test_whatever_starts_runs_is_bounded(path: str) -> None:
    given, _ = asked(path, [b"x" * 5000], [])
    assert given is None


@pytest.mark.parametrize("kept", ["/airflow", ""], ids=["a proxy that keeps the prefix", "one that takes it off"])
def test_below_a_root_of_a_proxy_it_acts_too(kept: str) -> None:
    app = FastAPI(root_path="/airflow")
    app.add_middleware(BoundedBodies, limit=1000)

    @app.post("/api/v2/dags/{dag_id}/dagRuns")
    def trigger(dag_id: str) -> str:
        return dag_id

    client = TestClient(app, root_path="")
    assert client.post(f"{kept}/api/v2/dags/d/dagRuns", content=b"x" * 1000).json() == "d"
    assert client.post(f"{kept}/api/v2/dags/d/dagRuns", content=b"x" * 1001).status_code == 413
