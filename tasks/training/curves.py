"""Training jobs as a page shows them: state, curves of few points, events, and figures before and after."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from tasks.corpus.artifact import read_artifact
from tasks.corpus.storage import exists, join, read_json
from tasks.errors import DataError
from tasks.training.job import EVENTS, Job

CURVES = ("loss", "heldout_loss", "reward", "kl", "grad_norm", "learning_rate", "tokens_per_second", "memory_mb")
POINTS = 300  # of a curve
FIGURES = ("measure", "before", "after", "heldout_loss_low", "heldout_loss_high", "perplexity", "general_loss_rise")


def read_jobs(home: Path) -> list[Job]:
    """Every job of this machine, the one at work last first."""
    folders = [path.parent for path in (home / "jobs").glob("*/spec.json")]
    return [Job(folder) for folder in sorted(folders, key=_touched, reverse=True)]


def _touched(folder: Path) -> float:
    beat = folder / "heartbeat"
    return (beat if beat.exists() else folder / "spec.json").stat().st_mtime


def describe(job: Job) -> dict[str, Any]:
    """State, progress, events and what its evaluation said, if it was evaluated."""
    spec, status = job.spec, job.status()
    found: dict[str, Any] = {
        "key": spec.key,
        "recipe": spec.recipe,
        "stage": spec.stage,
        "kind": spec.kind,
        "state": status.state,
        "message": status.message[:2000],
        "progress": status.progress,
        "events": list(_lines(job.folder / EVENTS))[-50:],
        "parents": {role: parent.hash for role, parent in spec.parents.items()},
        "figures": {},
        "artifact": None,
    }
    if spec.finished:
        artifact = read_artifact(spec.artifact)
        where = join(spec.store, "evaluations", artifact.hash, "metrics.json")
        metrics = read_json(where) if exists(where) else {}
        found["artifact"] = artifact.hash
        found["figures"] = {name: metrics[name] for name in FIGURES if metrics.get(name) is not None}
    return found


def curves(job: Job) -> dict[str, list[list[float]]]:
    """Name → [[step, value], …] of what the job reports, thinned evenly to about POINTS with the last one kept."""
    path = job.folder / "progress.jsonl"
    if not path.exists():
        return {}
    status = path.stat()
    return _curves(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _curves(path: Path, changed: int, size: int) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for line in _lines(path):
        for name in CURVES:
            if isinstance(line.get(name), int | float) and "step" in line:
                found.setdefault(name, []).append([line["step"], line[name]])
    return {name: _thinned(points) for name, points in found.items()}


def _thinned(points: list[list[float]]) -> list[list[float]]:
    every = -(-len(points) // POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of a file that may be growing."""
    if path.exists():
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield orjson.loads(line)


def find_job(home: Path, key: str) -> Job:
    """Raises DataError when there is no job of that key."""
    folder = home / "jobs" / key
    if not key.isalnum() or not (folder / "spec.json").is_file():
        raise DataError(f"no training job {key!r} on this machine")
    return Job(folder)
