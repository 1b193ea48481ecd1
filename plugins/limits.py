"""A bound on what starts a run through the REST API: a configuration or an asset event is words, not data.

Without it, Airflow keeps a megabyte of configuration in its database and sends it along with every task of the run.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

LARGEST = 128 * 1024  # bytes of a request's body
STARTS_RUNS = re.compile(r"/api/v2/(dags/[^/]+/dagRuns|backfills(/dry_run)?|assets/events|assets/\d+/materialize)/?")
WORDS = (
    "this request has more than {limit} bytes; a run's configuration is a form's values. Put data into the store or "
    "the landing zone, and name where it lies"
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class TooLarge(Exception):
    """The body has more bytes than the limit."""


def route(scope: Scope) -> str:
    """The path below the root under which a proxy shows Airflow (`[api] base_url`): where its routes are looked for."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(f"{root}/") else path


class BoundedBodies:
    """ASGI middleware: answers 413 to a larger body where runs are started, whether its length was told or not."""

    def __init__(self, app: Any, limit: int = LARGEST) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not STARTS_RUNS.fullmatch(route(scope)):
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if told.isdigit() and int(told) > self.limit:
            await self._refuse(send)
            return
        try:
            chunks = await self._whole(receive)
        except TooLarge:
            await self._refuse(send)
            return

        async def again() -> dict[str, Any]:
            return chunks.pop(0) if chunks else await receive()

        await self.app(scope, again, send)

    async def _whole(self, receive: Receive) -> list[dict[str, Any]]:
        """The messages of the body. Raises TooLarge as soon as they are more than the limit."""
        messages: list[dict[str, Any]] = []
        size = 0
        while True:
            messages.append(await receive())
            size += len(messages[-1].get("body", b""))
            if size > self.limit:
                raise TooLarge
            if not messages[-1].get("more_body"):
                return messages

    async def _refuse(self, send: Send) -> None:
        body = json.dumps({"detail": WORDS.format(limit=f"{self.limit:,}")}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 413, "headers": [*headers, (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})
