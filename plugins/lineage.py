"""Where OpenLineage's events go by default: into a folder, one file a day, of which the last are kept.

OpenLineage's own transport to a file adds to one for ever. This is named in Airflow's configuration as

    {"type": "plugins.lineage.DailyFiles", "folder": "/somewhere"}
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attr
from openlineage.client.serde import Serde
from openlineage.client.transport.transport import Config, Transport

KEEP = 30  # files, thus days on which something ran


@attr.define
class Folder(Config):
    """`folder` is made where it is missing; everything in it that is named like a day is this transport's."""

    folder: str = ""

    @classmethod
    def from_dict(cls, params: dict[str, Any]) -> "Folder":
        return cls(params["folder"])


class DailyFiles(Transport):
    """`<folder>/YYYY-MM-DD.jsonl` (UTC), a line an event; a day's first event deletes all but the last 30 files."""

    kind = "athanor_daily_files"
    config_class = Folder

    def __init__(self, config: Folder) -> None:
        self.folder = Path(config.folder)

    def emit(self, event: Any) -> None:
        file = self.folder / f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
        first = not file.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        line = f"{Serde.to_json(event)}\n".encode()
        with file.open("ab", buffering=0) as target:
            target.write(line)  # in one piece: many processes add to it
        if first:
            for old in sorted(self.folder.glob("????-??-??.jsonl"))[:-KEEP]:
                old.unlink(missing_ok=True)
