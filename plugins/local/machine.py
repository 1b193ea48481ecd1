"""Is this machine fit for a run? One clear line when it is not."""

import shutil
import sys
from pathlib import Path

import psutil

from tasks.errors import ConfigError

PYTHONS = ((3, 11), (3, 12))
FREE_BYTES = 2_000_000_000  # the sample's corpus, models and Airflow's database and logs stay below this
MEMORY_BYTES = 3_000_000_000  # Airflow's six processes take 1 GB, two trainers of the recipe `tiny` as much again


def check_machine(home: Path) -> None:
    """Raises ConfigError that says what is missing and what to do."""
    if sys.version_info[:2] not in PYTHONS:
        raise ConfigError(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} runs this; 3.11 or 3.12 is needed: "
            "name one with `make setup PYTHON=python3.11`"
        )
    _writable(home)
    free = shutil.disk_usage(home).free
    if free < FREE_BYTES:
        raise ConfigError(
            f"{home} has {free / 1e9:.1f} GB free; {FREE_BYTES / 1e9:.0f} GB are needed: "
            "free some, or name another folder with ATHANOR_HOME"
        )
    available = psutil.virtual_memory().available
    if available < MEMORY_BYTES:
        raise ConfigError(
            f"{available / 1e9:.1f} GB of memory are available; {MEMORY_BYTES / 1e9:.0f} GB are needed: "
            "end other programs, or take a larger machine"
        )


def _writable(home: Path) -> None:
    """Make the folder, and try to write into it: permission bits alone do not tell of a read-only disk."""
    trial = home / ".trial"
    try:
        home.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ConfigError(
            f"{home}: cannot be written: {error.strerror}; give this user the folder, or name another with ATHANOR_HOME"
        ) from None
