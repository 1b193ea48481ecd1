"""`airflow standalone`, without its log servers.

The scheduler and the triggerer each open a server for task logs on *all* interfaces, with no setting for the address.
On one machine nobody needs them (the UI reads the files), so both are started with `--skip-serve-logs`.
"""

import sys
from typing import Any

from airflow.__main__ import main
from airflow.cli.commands import standalone_command


class LoopbackSubCommand(standalone_command.SubCommand):
    """One part of standalone, told to open no log server."""

    def __init__(self, parent: Any, name: str, command: list[str], env: dict[str, str]) -> None:
        if name in ("scheduler", "triggerer"):
            command = [*command, "--skip-serve-logs"]
        super().__init__(parent, name=name, command=command, env=env)


if __name__ == "__main__":
    standalone_command.SubCommand = LoopbackSubCommand  # type: ignore[misc]
    sys.argv = ["airflow", "standalone"]
    main()
