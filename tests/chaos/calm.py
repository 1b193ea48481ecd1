"""The whole walk without harm, as a measure for those that are disturbed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tasks.corpus.artifact import verify_artifact
from tasks.corpus.registry import read_registry
from tasks.corpus.storage import join
from tasks.settings import REPOSITORY
from tests.chaos.runs import tree
from tests.end_to_end.runner import LIMIT, MICRO, SNAPSHOT


@dataclass(frozen=True)
class Calm:
    """A landing zone, and the checksums of the corpus and of the model that come of it."""

    landing: Path
    corpus: dict[str, str]
    weights: dict[str, str]
    programs: list[str]  # that PATH led to meanwhile, a compiler among them or not


def walk_calmly(landing: Path, home: Path) -> Calm:
    """The same steps as a run's, from a shell and without Airflow, where no other program can be found."""
    store, nothing = str(home / "store"), home / "programs"
    nothing.mkdir(parents=True)
    corpus = join(store, "corpus", SNAPSHOT)

    def tasks(*words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "ATHANOR_HOME": str(home), "PATH": str(nothing)}
        subprocess.run([sys.executable, "-m", "tasks", *words], env=environment, check=True, timeout=LIMIT)

    tasks("curate", "--input", str(landing), "--snapshot", SNAPSHOT, "--output", corpus, "--workers", "1")
    instructions = str(landing / "instructions")
    tasks("train", "--recipe", str(MICRO), "--corpus", corpus, "--instructions", instructions, "--store", store)
    return Calm(landing, corpus_of(store), weights_of(store), [path.name for path in nothing.iterdir()])


def corpus_of(store: str) -> dict[str, str]:
    """Checksums of the curated corpus, every file of which is what its artifact says."""
    corpus = join(store, "corpus", SNAPSHOT)
    verify_artifact(corpus)
    return tree(corpus)


def weights_of(store: str) -> dict[str, str]:
    """Checksums of the candidate's weights; it and all that it came from are whole."""
    uri = read_registry(store, "micro")["candidate"]["uri"]
    model = verify_artifact(uri)
    for parent in model.parent_uris:
        if "/artifacts/" in parent:
            verify_artifact(parent)
    return {name: entry.sha256 for name, entry in model.files.items() if name.endswith(".safetensors")}
