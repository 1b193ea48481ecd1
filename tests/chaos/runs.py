"""What the tests of this folder share: text that passes every rule, a whole run of curation, and its outcome."""

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.corpus.parquet import read_table
from tasks.corpus.storage import open_store
from tasks.curation import steps

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SNAPSHOT = "2026-11-30"
WORDS = "the of and that have with be to in a data model text page word line time work part place case".split()  # noqa: SIM905


def english(seed: int, sentences: int = 14) -> str:
    """Text that is kept, and no duplicate of that of another seed."""
    noise = random.Random(seed)
    made = [" ".join([*noise.choices(WORDS, k=11), f"fact{noise.randrange(10**6)}"]) for _ in range(sentences)]
    return " ".join(f"{sentence.capitalize()}." for sentence in made)


def curate(landing: Path | str, output: Path | str, **options: Any) -> dict[str, Any]:
    """All steps, one after another; what publishing returns."""
    plan = steps.inventory(str(landing), str(output), SNAPSHOT, **options)
    for group in plan["groups"]:
        steps.compute_signals(str(output), group)
    steps.cluster_duplicates(str(output))
    for group in plan["groups"]:
        steps.write_verdicts(str(output), group)
    return steps.publish(str(output))


def tree(output: Path | str) -> dict[str, str]:
    """SHA-256 of everything that a run hands on, by name."""
    store = open_store(str(output))
    names = [entry.key for folder in ("curated/", "verdicts/") for entry in store.list(folder)]
    return {name: hashlib.sha256(store.read(name)).hexdigest() for name in [*names, "report.json"]}


def tables(output: Path | str, folder: str) -> dict[str, pa.Table]:
    """File name → rows, of `curated` or `verdicts`."""
    store, found = open_store(str(output)), {}
    for entry in store.list(f"{folder}/"):
        with store.open(entry.key) as stream:
            found[entry.key] = read_table(stream)
    return found


def temporary_files(output: Path) -> list[Path]:
    """What a write that was not finished would have left."""
    return [path for path in output.rglob(".tmp-*") if path.name != ".tmp-lock"]
