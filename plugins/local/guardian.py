"""The process that owns Airflow: it starts `airflow standalone` and ends everything below itself.

It runs in a session of its own. With `--attached` its standard input is a pipe whose other end the runner holds: when
the runner ends, by whatever signal, the pipe closes and the guardian ends Airflow, its tasks and the training jobs.
Without, it lives until `make down` sends it SIGTERM.

    python -m plugins.local.guardian FOLDER [--attached]

FOLDER is AIRFLOW_HOME; Airflow's configuration comes from the environment.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from plugins.local.lock import Held, hold
from plugins.local.processes import adopt_orphans, end_descendants, reap

STATE, LOCK, LOG = "guardian.json", "guardian.lock", "standalone.log"
BUSY = 75  # EX_TEMPFAIL: another guardian owns this folder


class Guardian:
    """Starts Airflow, waits for a reason to stop, ends everything."""

    def __init__(self, folder: Path, attached: bool) -> None:
        self.folder, self.attached = folder, attached
        self.stopping = False

    def run(self) -> int:
        """0 when told to stop, 1 when Airflow ended by itself."""
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        try:
            with hold(self.folder / LOCK, wait=30.0):
                return self._guard()
        except Held:
            return BUSY

    def _guard(self) -> int:
        with (self.folder / LOG).open("wb") as log:
            airflow = subprocess.Popen(
                [sys.executable, "-m", "plugins.local.standalone"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        settings = {key: value for key, value in os.environ.items() if key.startswith("ATHANOR_")}
        write_state(self.folder, {"pid": os.getpid(), "url": os.environ["AIRFLOW__API__BASE_URL"], **settings})
        try:
            while not self.stopping and not self._runner_gone():
                if airflow.pid in reap():
                    return 1
        finally:
            end_descendants()
            (self.folder / STATE).unlink(missing_ok=True)
        return 0

    def _runner_gone(self) -> bool:
        """Waits half a second; True when the pipe to the runner has closed."""
        if not self.attached:
            time.sleep(0.5)
            return False
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], 0.5)
        return bool(readable) and os.read(sys.stdin.fileno(), 1) == b""

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True


def write_state(folder: Path, state: dict[str, object]) -> None:
    """Tell others who owns this folder's Airflow and where its UI is."""
    unfinished = folder / f"{STATE}.tmp"
    unfinished.write_text(json.dumps(state), encoding="utf-8")
    unfinished.replace(folder / STATE)


def read_state(folder: Path) -> dict[str, object] | None:
    """The state of the guardian that owns `folder` now, None when there is none."""
    try:
        with hold(folder / LOCK, wait=0.0):
            return None  # nobody holds it: a state file, if any, is a dead guardian's
    except (Held, FileNotFoundError):
        try:
            return json.loads((folder / STATE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


if __name__ == "__main__":
    sys.exit(Guardian(Path(sys.argv[1]), attached="--attached" in sys.argv[2:]).run())
