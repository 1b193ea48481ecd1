"""`airflow standalone` with three differences.

*No log servers*: the scheduler and the triggerer each open a server for task logs on all interfaces, with no setting
for the address. On one machine nobody needs them (the UI reads the files), so both start with `--skip-serve-logs`.

*Parts come back*: standalone lets a part that was killed (by the kernel for its memory, by a person) stay dead, and a
run would wait for ever. Here it is started again. A part that keeps dying ends the whole.

*The API server* waits less for a busy database than the others do: see `api_server_environment`.
"""

import _thread
import subprocess
import sys
import threading
import time
from collections import deque
from typing import IO, Any

from airflow.__main__ import main
from airflow.cli.commands import standalone_command

from plugins.local.airflow_home import api_server_environment

MOST_RESTARTS, WITHIN_SECONDS = 5, 120.0


class Part(standalone_command.SubCommand):
    """One part of standalone: scheduler, DAG processor, API server or triggerer."""

    def __init__(self, parent: Any, name: str, command: list[str], env: dict[str, str]) -> None:
        if name in ("scheduler", "triggerer"):
            command = [*command, "--skip-serve-logs"]
        elif name == "api-server":
            env = api_server_environment(env)
        super().__init__(parent, name=name, command=command, env=env)
        self.stopping = False
        self.starts: deque[float] = deque(maxlen=MOST_RESTARTS)

    def run(self) -> None:
        """Keep the part alive until `stop`."""
        while not self.stopping:
            if len(self.starts) == MOST_RESTARTS and time.monotonic() - self.starts[0] < WITHIN_SECONDS:
                self._say(f"ended {MOST_RESTARTS} times within {WITHIN_SECONDS:.0f} s; giving up")
                _thread.interrupt_main()
                return
            self.starts.append(time.monotonic())
            self.process = subprocess.Popen(
                ["airflow", *self.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.env
            )
            # On a thread: a killed scheduler's workers live on and keep the pipe open.
            threading.Thread(target=self._relay, args=(self.process.stdout,), daemon=True).start()
            status = self.process.wait()
            if not self.stopping:
                self._say(f"ended with status {status}; starting it again")

    def stop(self) -> None:
        self.stopping = True
        super().stop()

    def _relay(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.parent.output_queue.append((self.name, line))

    def _say(self, words: str) -> None:
        self.parent.output_queue.append((self.name, words.encode()))


if __name__ == "__main__":
    standalone_command.SubCommand = Part  # type: ignore[misc]
    sys.argv = ["airflow", "standalone"]
    main()
