"""What the runner prints: lines that stay, and on a terminal one line that changes."""

import sys
import time
from typing import Any


class Terminal:
    """Lines with the time since the start; `status` overwrites itself on a terminal and is sparse elsewhere."""

    QUIET_SECONDS = 20.0  # between two status lines when the output is no terminal

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self._live = sys.stdout.isatty()
        self._shown_at, self._shown = self.begun, ""

    def line(self, text: str = "") -> None:
        """A line with the elapsed time."""
        self.plain(f"{self._clock()}  {text}")

    def plain(self, text: str = "") -> None:
        """A line as it is."""
        print(f"\r\033[K{text}" if self._live else text, flush=True)
        self._shown = ""

    def status(self, text: str) -> None:
        """What goes on at the moment."""
        if text == self._shown:
            return
        now = time.monotonic()
        if self._live:
            print(f"\r\033[K{self._clock()}  … {text}"[:200], end="", flush=True)
        elif now - self._shown_at >= self.QUIET_SECONDS:
            print(f"{self._clock()}  … {text}", flush=True)
        else:
            return
        self._shown_at, self._shown = now, text

    def figures(self, progress: dict[str, Any]) -> None:
        """What goes on, as names and numbers."""
        self.status(", ".join(f"{key} {value}" for key, value in progress.items()))

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.begun)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"
