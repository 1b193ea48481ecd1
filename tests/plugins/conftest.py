"""A small real corpus, curated once, for jobs that operators and triggers meet."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

# Airflow reads its home when it is imported, and writes its configuration there.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="athanor-airflow-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__PLUGINS_FOLDER", str(Path(__file__).resolve().parents[2] / "plugins"))


@dataclass(frozen=True)
class Place:
    """Where a small curated corpus, instruction records and everything made of them lie."""

    home: Path
    store: str
    corpus: str
    instructions: str
    recipe: str


@pytest.fixture(scope="session")
def micro() -> str:
    """Path of the smallest recipe."""
    return str(Path(__file__).resolve().parents[1] / "end_to_end" / "micro.yaml")


@pytest.fixture(scope="session")
def curated(micro: str, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Modules of the standard library, curated."""
    import json

    from tasks.corpus.shards import write_shard
    from tasks.curation import steps

    root = tmp_path_factory.mktemp("curated")
    library = Path(json.__file__).resolve().parents[1]
    texts = [path.read_text(encoding="utf-8") for path in sorted(library.glob("*.py"))]
    landing = root / "landing" / "2026-01-15"
    write_shard(
        landing / "stdlib" / "part-000.jsonl.zst",
        [{"text": text, "kind": "code"} for text in texts if len(text) < 40_000][:60],
    )
    output = str(root / "store" / "corpus" / "2026-01-15")
    (group,) = steps.inventory(str(landing), output, "2026-01-15", max_groups=1)["groups"]
    steps.compute_signals(output, group, workers=1)
    steps.cluster_duplicates(output, workers=1)
    steps.write_verdicts(output, group, workers=1)
    steps.publish(output)
    return Place(root / "home", str(root / "store"), output, str(root / "landing" / "instructions"), micro)


@pytest.fixture
def place(curated: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same corpus, with a job folder and a store of this test's own."""
    own = Place(tmp_path / "home", str(tmp_path / "store"), curated.corpus, curated.instructions, curated.recipe)
    monkeypatch.setenv("ATHANOR_HOME", str(own.home))
    monkeypatch.setenv("ATHANOR_STORE", own.store)
    return own
