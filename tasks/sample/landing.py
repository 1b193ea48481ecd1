"""The harvest's folder: shards written aside and moved into place whole, and a status file written last.

`harvest.json` says of each part (`corpus`, `instructions`) whether it is `running` or `finished`, with which
parameters, in which folder, and which files there are its own. A part that is `running` was interrupted and is made
again. Files that the status does not name were put there by someone else and are never removed.
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
        state = self._part(part)
        if state is None or state["state"] != "finished" or state["parameters"] != parameters:
            return None
        sizes = state["files"]
        whole = all((self.root / name).is_file() and (self.root / name).stat().st_size == sizes[name] for name in sizes)
        return {**state["result"], "files": sizes} if whole else None

    def folder_of(self, part: str) -> str | None:
        """The folder that an earlier call gave this part, finished or not."""
        state = self._part(part)
        return state["folder"] if state else None

    def write(
        self, part: str, folder: str, parameters: dict[str, Any], fill: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any]:
        """Let `fill` write a folder aside, then move it to `folder`. Returns its result and {"files": {name: size}}.

        Raises DataError when `folder` holds files that no harvest wrote.
        """
        target, aside = self.root / folder, self.root / f".harvest-{part}"
        before = self._part(part)
        own = before["files"] if before and before["folder"] == folder else {}
        foreign = sorted(set(self._sizes(target, folder)) - set(own))
        if foreign:
            raise DataError(
                f"{self.root / foreign[0]}: not written by the harvest, which would replace the folder {target}; "
                "move it elsewhere, or choose another snapshot date or another landing zone"
            )
        state = {"state": "running", "folder": folder, "parameters": parameters}
        self._record(part, {**state, "files": own})
        _remove(aside)
        aside.mkdir(parents=True)
        result = fill(aside)
        files = self._sizes(aside, folder)
        self._record(part, {**state, "files": {**own, **files}})
        _remove(target)
        aside.rename(target)
        self._record(part, {**state, "state": "finished", "files": files, "result": result})
        return {**result, "files": files}

    def _sizes(self, path: Path, folder: str) -> dict[str, int]:
        """Sizes in bytes of the files under `path`, by the name each has in the landing zone under `folder`."""
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {f"{folder}/{file.relative_to(path).as_posix()}": file.stat().st_size for file in files}

    def _part(self, part: str) -> dict[str, Any] | None:
        return self._status()["parts"].get(part)

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


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
