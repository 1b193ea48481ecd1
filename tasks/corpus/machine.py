"""Which table of processes a process's number belongs to."""

import socket
import uuid
from functools import cache
from pathlib import Path

BOOT, NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


def machine() -> str:
    """Host, boot and PID namespace: where these are equal, equal numbers mean the same process.

    The host's name alone does not tell: containers share one, and so do hosts that were set up alike.
    """
    return f"{socket.gethostname()} {_processes()}"


@cache
def _processes() -> str:
    try:
        return f"{BOOT.read_text().strip()} {NAMESPACE.readlink()}"
    except OSError:
        return uuid.uuid4().hex  # not to be told: then each process counts as on a machine of its own
