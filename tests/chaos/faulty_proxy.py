"""An HTTP proxy that spoils a share of requests, the same ones for the same seed.

What happens to a request is drawn from (seeds, method, path, how often it came before), and not from the order in which
threads arrive. A client that asks again is told the truth sooner or later, as with a real service.
"""

import random
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.chaos.runs import SEED

SLOW_DOWN = "503 SlowDown"
BEFORE = "dropped before the request was read on"
IN_REQUEST = "dropped in the middle of the request's body"
NO_ANSWER = "done, and dropped before the answer"
IN_ANSWER = "dropped in the middle of the answer's body"
KINDS = (SLOW_DOWN, BEFORE, IN_REQUEST, NO_ANSWER, IN_ANSWER)

BUSY = (
    b"<?xml version='1.0' encoding='UTF-8'?>"
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


@dataclass
class Plan:
    """Which requests are spoilt: `share` of those whose method and path begin as told, each in one of `kinds`."""

    seed: int
    share: float
    kinds: Sequence[str] = KINDS
    method: str = ""
    path: str = ""
    first: int | None = None  # if given, only the first so many requests for a path are spoilt
    happened: "Counter[tuple[str, str]]" = field(default_factory=Counter)  # (method, kind) → how often
    requests: int = 0
    _seen: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, method: str, path: str, has_body: bool) -> str | None:
        with self._lock:
            self.requests += 1
            number = self._seen[method, path]
            self._seen[method, path] += 1
        if not (method.startswith(self.method) and path.startswith(self.path)):
            return None
        draw = random.Random(f"{SEED} {self.seed} {method} {path} {number}")
        possible = [kind for kind in self.kinds if kind != IN_REQUEST or has_body]
        if not possible or draw.random() >= self.share or (self.first is not None and number >= self.first):
            return None
        return draw.choice(possible)

    def note(self, method: str, kind: str) -> None:
        with self._lock:
            self.happened[method, kind] += 1


@contextmanager
def faulty_proxy(upstream: str, plan: Plan) -> Iterator[str]:
    """Address of a proxy on loopback before the server `upstream`."""
    target = urlsplit(upstream)

    class Handler(_Handler):
        address = (target.hostname or "", target.port or 80)

    Handler.plan = plan
    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is what this is about; the client's own tests tell whether it minded."""


class _Handler(socketserver.StreamRequestHandler):
    """One request a connection."""

    address: tuple[str, int]
    plan: Plan

    def handle(self) -> None:
        first = self.rfile.readline()
        if not first:
            return
        method, path = first.decode("latin-1").split(" ")[:2]
        headers = list(iter(self.rfile.readline, b"\r\n"))
        named = {name.lower(): value.strip() for name, _, value in (header.partition(b":") for header in headers)}
        size = int(named.get(b"content-length", b"0"))
        kind = self.plan.fault(method, path, size > 1)
        if kind:
            self.plan.note(method, kind)
        if kind == BEFORE:
            self._reset(self.connection)
            return
        if b"expect" in named:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.rfile.read(size)
        if kind == SLOW_DOWN:
            head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(BUSY)}\r\nConnection: close\r\n\r\n"
            self.wfile.write(head.encode() + (BUSY if method != "HEAD" else b""))
            return
        kept = [header for header in headers if header.split(b":")[0].lower() not in (b"expect", b"connection")]
        answer = self._forward(first + b"".join(kept) + b"Connection: close\r\n\r\n", body, kind == IN_REQUEST)
        if kind in (IN_REQUEST, NO_ANSWER):
            self._reset(self.connection)
        elif kind == IN_ANSWER:
            begun, mark, rest = answer.partition(b"\r\n\r\n")
            self.wfile.write(begun + mark + rest[: len(rest) // 2])
        else:
            self.wfile.write(answer)

    def _forward(self, head: bytes, body: bytes, half: bool) -> bytes:
        with socket.create_connection(self.address, timeout=60) as server:
            if half:
                server.sendall(head + body[: len(body) // 2])
                self._reset(server)
                return b""
            server.sendall(head + body)
            return b"".join(iter(lambda: server.recv(1 << 16), b""))

    @staticmethod
    def _reset(connection: socket.socket) -> None:
        """End a connection as a lost host or a full table does: without a farewell."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
