"""One parse of the DAG folder for all tests."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from dags_parsing import parse


@pytest.fixture(scope="session")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return parse(tmp_path_factory.mktemp("dags"))
