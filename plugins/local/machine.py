"""Is this machine fit for a run? One clear line when it is not."""

import shutil
import sys
from pathlib import Path

from tasks.errors import ConfigError

PYTHONS = ((3, 11), (3, 12))
FREE_BYTES = 2_000_000_000  # the sample's corpus, models and Airflow's database and logs stay below this


def check_machine(home: Path) -> None:
    """Raises ConfigError that says what is missing and what to do."""
    if sys.version_info[:2] not in PYTHONS:
        raise ConfigError(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} runs this; 3.11 or 3.12 is needed: "
            "name one with `make setup PYTHON=python3.11`"
        )
    home.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(home).free
    if free < FREE_BYTES:
        raise ConfigError(
            f"{home} has {free / 1e9:.1f} GB free; {FREE_BYTES / 1e9:.0f} GB are needed: "
            "free some, or name another folder with ATHANOR_HOME"
        )
