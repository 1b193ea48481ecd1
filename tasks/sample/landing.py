"""The harvest's folder: shards written aside and moved into place whole, and a status file written last.

`harvest.json` says of each part (`corpus`, `instructions`) whether it is `running` or `finished`, with which
parameters, and which files belong to it. A part that is `running` was interrupted: it is removed and made again.
What the file does not name was put there by someone else and is never touched.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.corpus.storage import join, read_json, write_json
from tasks.errors import ConfigError, DataError

STATUS = "harvest.json"
SCHEMA_VERSION = 1


class Landing:
    """A local landing zone that a harvest writes into."""

    def __init__(self, into: str) -> None:
        """Raises ConfigError for a URI that is no local folder."""
        if "://" in into:
            raise ConfigError(f"{into}: the sample is harvested into a local folder; upload it from there")
        self.root = Path(into)

    def finished(self, part: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """Result of the finished part made with these parameters, when every file it names is still there whole."""
        state = self._status()["parts"].get(part)
        if state is None or state["state"] != "finished" or state["parameters"] != parameters:
            return None
        files = state["result"]["files"]
        whole = all((self.root / name).is_file() and (self.root / name).stat().st_size == files[name] for name in files)
        return state["result"] if whole else None

    def folder_of(self, part: str) -> str | None:
        """The folder that an earlier call gave this part, finished or not."""
        state = self._status()["parts"].get(part)
        return state["folder"] if state else None

    def write(
        self, part: str, folder: str, parameters: dict[str, Any], fill: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any]:
        """Let `fill` write a folder aside, move it to `folder`, record its result with the files' sizes.

        Raises DataError when `folder` holds data that no harvest of this part wrote.
        """
        target, aside = self.root / folder, self.root / f".harvest-{part}"
        if target.exists() and self.folder_of(part) != folder:
            raise DataError(
                f"{target}: holds data that the harvest did not write; choose another folder or another snapshot date"
            )
        self._record(part, {"state": "running", "folder": folder, "parameters": parameters})
        for stale in (aside, target):
            shutil.rmtree(stale, ignore_errors=True)
        aside.mkdir(parents=True)
        result = fill(aside)
        names = sorted(path for path in aside.rglob("*") if path.is_file())
        result["files"] = {f"{folder}/{path.relative_to(aside).as_posix()}": path.stat().st_size for path in names}
        aside.rename(target)
        self._record(part, {"state": "finished", "folder": folder, "parameters": parameters, "result": result})
        return result

    def _status(self) -> dict[str, Any]:
        if not (self.root / STATUS).is_file():
            return {"schema_version": SCHEMA_VERSION, "parts": {}}
        status = read_json(join(str(self.root), STATUS))
        if status.get("schema_version") != SCHEMA_VERSION:
            raise DataError(
                f"{self.root / STATUS}: schema_version {status.get('schema_version')!r}, expected {SCHEMA_VERSION}; "
                "remove this file and the folders that it names, and harvest again"
            )
        return status

    def _record(self, part: str, state: dict[str, Any]) -> None:
        status = self._status()
        status["parts"][part] = state
        write_json(join(str(self.root), STATUS), status)
