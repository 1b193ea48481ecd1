"""Checkpoints that are complete or not there: `checkpoints/step-00000040/` counts once complete.json is in it."""

import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any

import orjson

from tasks.corpus.storage import LocalStore, to_json
from tasks.training.context import Context
from tasks.training.engine import Engine

COMPLETE = "complete.json"
KEPT = 2


def save_checkpoint(
    context: Context, engine: Engine, step: int, states: dict[str, Any] | None = None, keeps: Set[int] = frozenset()
) -> None:
    """Save after `step` steps, mark it complete, and remove older ones but the last `KEPT` and those of `keeps`.

    `states` is what goes along with the run, by name, as JSON.
    """
    folder, tag = _folder(context), f"step-{step:08d}"
    context.check()
    if context.first:
        (folder / tag / COMPLETE).unlink(missing_ok=True)
    engine.save(folder, tag)
    if context.first:
        context.job.check(context.token)
        files = {path.name: path.stat().st_size for path in (folder / tag).iterdir()}
        record = {"schema_version": 1, "step": step, "files": files, "states": states or {}}
        LocalStore(folder / tag).write(COMPLETE, to_json(record))
        _prune(folder, keeps)


def resume(context: Context, engine: Engine) -> tuple[int, dict[str, Any]]:
    """Load the last complete checkpoint, if any. Returns the number of steps already taken, and the states saved."""
    step, states = max(complete_steps(_folder(context)), default=0), {}
    if step:
        states = load_checkpoint(context, engine, step)
    context.rewind(step)
    return step, states


def load_checkpoint(context: Context, engine: Engine, step: int) -> dict[str, Any]:
    """Load the complete checkpoint after `step` steps. Returns the states saved with it."""
    folder = _folder(context) / f"step-{step:08d}"
    engine.load(folder.parent, folder.name)
    return orjson.loads((folder / COMPLETE).read_bytes())["states"]


def complete_steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints: all files there, in full size."""
    found = []
    for marker in folder.glob(f"step-*/{COMPLETE}"):
        record = orjson.loads(marker.read_bytes())
        sizes = {path.name: path.stat().st_size for path in marker.parent.iterdir()}
        if record["files"].items() <= sizes.items():
            found.append(record["step"])
    return sorted(found)


def _folder(context: Context) -> Path:
    return context.job.folder / "checkpoints"


def _prune(folder: Path, keeps: Set[int]) -> None:
    kept = {*complete_steps(folder)[-KEPT:], *keeps}
    for path in folder.glob("step-*"):
        if int(path.name.removeprefix("step-")) not in kept:
            shutil.rmtree(path)
