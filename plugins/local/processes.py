"""Ending processes: everything below this one, however it detached itself.

Airflow's parts and the trainer start sessions of their own, so a signal to a process group misses some of them. A
*subreaper* becomes the parent of every descendant whose own parent has died; the tree below it is therefore complete,
and walking it finds them all.
"""

import os
import signal
import time

import psutil

from tasks.parent_death import prctl

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs. Linux only; elsewhere detached jobs end by their lease."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap() -> set[int]:
    """Collect children that have ended, adopted ones too; their process ids."""
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.add(pid)


def end_descendants(grace: float = 6.0, limit: float = 30.0) -> bool:
    """Ask every descendant to end, then insist after `grace` seconds; True when none is left within `limit`.

    A descendant that starts another one meanwhile does not escape: the tree is walked again until it is empty.
    """
    begun = time.monotonic()
    asked: set[int] = set()
    while True:
        reap()
        living = psutil.Process().children(recursive=True)
        waited = time.monotonic() - begun
        if not living or waited > limit:
            return not living
        for process in living:
            if waited > grace:
                _send(process, signal.SIGKILL)
            elif process.pid not in asked:
                asked.add(process.pid)
                _send(process, signal.SIGTERM)
        time.sleep(0.1)


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil compares the start time, so a reused process id is never hit
    except psutil.NoSuchProcess:
        return
