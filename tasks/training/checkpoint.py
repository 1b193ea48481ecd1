"""Checkpoints that are complete or not there: `checkpoints/step-00000040/` counts once complete.json is in it."""

import shutil
from pathlib import Path

import orjson

from tasks.corpus.storage import LocalStore, to_json
from tasks.training.context import Context
from tasks.training.engine import Engine

COMPLETE = "complete.json"
KEPT = 2


def save_checkpoint(context: Context, engine: Engine, step: int) -> None:
    """Save after `step` steps, mark it complete, and remove older ones but the last `KEPT`."""
    folder, tag = _folder(context), f"step-{step:08d}"
    context.check()
    if context.first:
        (folder / tag / COMPLETE).unlink(missing_ok=True)
    engine.save(folder, tag)
    if context.first:
        context.job.check(context.token)
        files = {path.name: path.stat().st_size for path in (folder / tag).iterdir()}
        LocalStore(folder / tag).write(COMPLETE, to_json({"schema_version": 1, "step": step, "files": files}))
        _prune(folder)


def resume(context: Context, engine: Engine) -> int:
    """Load the last complete checkpoint, if any. Returns the number of steps already taken."""
    step = max(complete_steps(_folder(context)), default=0)
    if step:
        engine.load(_folder(context), f"step-{step:08d}")
    context.rewind(step)
    return step


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


def _prune(folder: Path) -> None:
    kept = complete_steps(folder)[-KEPT:]
    for path in folder.glob("step-*"):
        if int(path.name.removeprefix("step-")) not in kept:
            shutil.rmtree(path)
