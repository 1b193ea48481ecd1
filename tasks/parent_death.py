"""A process that ends when the one that started it ends, however that came about (`kill -9` included)."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Get SIGTERM when the parent ends, however it does. Linux only; nothing happens elsewhere."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Linux only; nothing happens elsewhere. Raises OSError when the kernel refuses it."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")
