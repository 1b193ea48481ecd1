"""The port of Airflow's UI, held from the moment it is chosen until the Airflow that listens there has ended.

Between choosing a port and listening on it Airflow takes half a minute, in which another run would choose the same one.
So it is held twice: by a name that two runs cannot both have (a Unix socket in Linux' abstract namespace, which is as
wide as the ports themselves, and goes with its last owner), and by a TCP socket that is bound to it and never
listens, which turns away programs that look for a port without knowing of the name.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from tasks.errors import ConfigError

HOST = "127.0.0.1"
TRIES = 50  # ports that the system picks and another run was quicker to name


@dataclass(frozen=True)
class HeldPort:
    """A port that is this process' for as long as its sockets, or a child's copies of them, are open."""

    number: int
    sockets: tuple[socket.socket, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a child must be given so that it holds the port on."""
        return tuple(item.fileno() for item in self.sockets)


@contextmanager
def held_port(wished: int, *, exactly: bool = False) -> Iterator[HeldPort]:
    """Hold `wished`, or when it is in use one that the system picks; with `exactly` that is a ConfigError instead."""
    held = _hold(wished)
    if held is None and exactly:
        raise ConfigError(in_use(wished))
    for _ in range(TRIES):
        held = held or _hold(0)
    if held is None:
        raise ConfigError("no port is free on the loopback interface; end other programs that listen there")
    try:
        yield held
    finally:
        for item in held.sockets:
            item.close()


def _hold(wished: int) -> HeldPort | None:
    """The port, or None when it is another's."""
    port, name = socket.socket(socket.AF_INET, socket.SOCK_STREAM), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that Airflow can bind it beside this one
        port.bind((HOST, wished))
        number = int(port.getsockname()[1])
        name.bind(f"\0athanor port {number}")
        return HeldPort(number, (port, name))
    except OSError:
        port.close()
        name.close()
        return None


def in_use(port: int) -> str:
    """One line for a person: who has the port, as far as this user may know, and what to do."""
    owner = listener(port)
    by = f" by process {owner.pid} ({owner.name()})" if owner else ""
    return f"port {port} is in use{by}; end that, name another port with PORT=…, or name none and one is found"


def listener(port: int) -> psutil.Process | None:
    """The process that listens on a port of the loopback interface; None when none is seen."""
    with suppress(psutil.Error):
        for item in psutil.net_connections("tcp"):
            if item.status == psutil.CONN_LISTEN and item.laddr.port == port and item.pid:
                return psutil.Process(item.pid)
    return None


def listens_below(port: int, pid: int) -> bool:
    """Whether process `pid` or one below it listens on the port. Raises ConfigError when another process does."""
    owner = listener(port)
    if owner is None:
        return False
    with suppress(psutil.NoSuchProcess):
        if pid not in (owner.pid, *(parent.pid for parent in owner.parents())):
            raise ConfigError(in_use(port))
        return True
    return False
