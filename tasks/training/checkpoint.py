"""Checkpoints: written while training goes on, complete or not there, verified before they are used.

    checkpoints/step-00000040/                 after 40 steps; appears under this name when all of it is on disk
        zero_pp_rank_0_mp_rank_00_….pt         DeepSpeed's parts, one rank's each
        complete.json                          step, ranks, SHA-256 and size of every file, states of what goes along
    checkpoints/.writing-00000044-3/           being written by the owner with token 3

Each rank copies its part in memory, which is all that training waits for, and writes it in a thread. The first rank's
thread waits for everyone's part and renames the folder, under the job's lock, so that an owner that was replaced
cannot. At most one checkpoint is in flight; a write that failed ends the run.
"""

import os
import shutil
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import orjson
import torch

from tasks.corpus.artifact import FileEntry, file_hash
from tasks.corpus.local_store import LocalStore, to_disk
from tasks.corpus.storage import to_json
from tasks.errors import AthanorError
from tasks.training.context import Context
from tasks.training.engine import Engine

COMPLETE = "complete.json"
POLL = 0.02  # seconds between two looks for the other ranks' parts


class Checkpoints:
    """A run's checkpoints: the last `keep` and those of `save`'s `keeps`. Every method but `check` is collective."""

    def __init__(self, context: Context, engine: Engine, keep: int = 2) -> None:
        self.context, self.engine, self.keep = context, engine, keep
        self.folder = context.job.folder / "checkpoints"
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._good: list[int] = []  # steps known to be complete and whole
        self.notes: list[str] = []  # what `resume` had to say, for the next line of progress

    def save(self, step: int, states: dict[str, Any] | None = None, keeps: Set[int] = frozenset()) -> None:
        """Begin to save after `step` steps; returns when every rank has a copy. `states` is JSON, by name."""
        self.wait()
        self.context.check()
        target = self.folder / f".writing-{step:08d}-{self.context.token}"
        if self.context.first:
            shutil.rmtree(target, ignore_errors=True)
        try:
            parts = self.engine.snapshot(target)
        except OSError as error:  # the folder could not be made
            self._failure = error
            self.check()
        record = {"schema_version": 1, "step": step, "ranks": self.engine.world, "states": states or {}}
        self._thread = threading.Thread(target=self._run, args=(target, parts, record, keeps), daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise AthanorError when this rank's last write has failed."""
        if self._failure is not None:
            raise AthanorError(
                f"a checkpoint could not be written under {self.folder}: {self._failure}; "
                "make space or mend the disk, then submit the stage again"
            ) from self._failure

    def wait(self) -> None:
        """Wait until nothing is in flight on this rank; on the first, until the checkpoint is complete."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def resume(self) -> tuple[int, dict[str, Any]]:
        """Load the last whole checkpoint, or begin at 0. Returns the steps already taken and the states saved.

        One that is not whole is left out, and an event says which and why.
        """
        found = 0
        for step in sorted(complete_steps(self.folder), reverse=True):
            why = self._problem(step)
            if not why:
                found = step
                break
            self._say("checkpoint_skipped", step=step, why=why)
        if self.context.first:
            for path in sorted(self.folder.glob(".writing-*")):
                self.context.event(
                    "checkpoint_unfinished", folder=path.name, why="its writer ended before it was whole"
                )
                shutil.rmtree(path, ignore_errors=True)
        self._good = [step for step in complete_steps(self.folder) if step < found]
        states = self.load(found) if found else {}
        if not found and (self.context.job.folder / "progress.jsonl").exists():
            self._say("started_again", why="no whole checkpoint is left, training begins at step 0")
        self.context.rewind(found)
        torch.distributed.barrier()
        return found, states

    def load(self, step: int) -> dict[str, Any]:
        """Load the checkpoint after `step` steps. Returns the states saved with it."""
        self.wait()
        torch.distributed.barrier()
        folder = self.folder / f"step-{step:08d}"
        record = orjson.loads((folder / COMPLETE).read_bytes())
        if record["ranks"] != self.engine.world:
            self.context.event("checkpoint_converted", step=step, saved_on=record["ranks"], ranks=self.engine.world)
            self.engine.load_universal(folder, self.folder / f".universal-{self.context.token}")
        else:
            self.engine.load(folder)
        self._good = [item for item in self._good if item < step] + [step]
        return record["states"]

    def last(self, before: int) -> int:
        """The step of the newest whole checkpoint at or before `before`; -1 when there is none."""
        self.wait()
        torch.distributed.barrier()
        while True:
            known = [step for step in self._good if step <= before] if self.context.first else []
            step = int(self.engine.max(max(known, default=-1)))
            why = self._problem(step) if step >= 0 else ""
            if not why:
                return step
            self._say("checkpoint_skipped", step=step, why=why)
            self._good = [item for item in self._good if item != step]

    def _say(self, event: str, **evidence: Any) -> None:
        self.context.event(event, **evidence)
        self.notes.append(" ".join([event.replace("_", " "), *(f"{key} {value}" for key, value in evidence.items())]))

    def _problem(self, step: int) -> str:
        """What is wrong with a checkpoint, or nothing. Every rank reads its share of the files."""
        folder = self.folder / f"step-{step:08d}"
        mine = problem(folder, self.context.rank, self.engine.world)
        return "; ".join(sorted({text for text in self.engine.tell_all(mine) if text}))

    def _run(self, target: Path, parts: dict[str, Any], record: dict[str, Any], keeps: Set[int]) -> None:
        try:
            mine = {name: _write(target / name, state) for name, state in parts.items()}
            LocalStore(target).write(f"rank-{self.context.rank}.json", to_json(mine))
            if self.context.first:
                self._complete(target, record, keeps)
        except BaseException as error:  # noqa: BLE001 - `check` raises it again in the main thread
            self._failure = error

    def _complete(self, target: Path, record: dict[str, Any], keeps: Set[int]) -> None:
        """Wait for every rank's part, then let the checkpoint appear under its name."""
        reports = [target / f"rank-{rank}.json" for rank in range(record["ranks"])]
        while not all(path.exists() for path in reports):
            time.sleep(POLL)
        files = {name: entry for path in reports for name, entry in orjson.loads(path.read_bytes()).items()}
        for path in reports:
            path.unlink()
        LocalStore(target).write(COMPLETE, to_json({**record, "files": files}))
        final = self.folder / f"step-{record['step']:08d}"
        with self.context.job.owned(self.context.token):
            shutil.rmtree(final, ignore_errors=True)  # one that was not whole
            to_disk(target)
            target.rename(final)
            to_disk(self.folder)
            self._good.append(record["step"])
            self._prune(keeps)

    def _prune(self, keeps: Set[int]) -> None:
        kept = {*self._good[-self.keep :], *keeps}
        self._good = [step for step in self._good if step in kept]
        for step in complete_steps(self.folder):
            if step not in kept:
                shutil.rmtree(self.folder / f"step-{step:08d}")


def complete_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that are there under their names, whole or not, in order."""
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    return sorted(int(name) for name in names if name.isdigit())


def problem(folder: Path, rank: int = 0, ranks: int = 1) -> str:
    """Why a checkpoint cannot be used, or an empty text. Of `ranks` readers, each reads its share of the files."""
    store = LocalStore(folder)
    if not store.exists(COMPLETE):
        return f"no {COMPLETE}"
    try:
        record = orjson.loads(store.read(COMPLETE))
        files = {name: FileEntry.model_validate(entry) for name, entry in record["files"].items()}
        _ = record["step"], record["ranks"], record["states"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{COMPLETE} is damaged ({type(error).__name__})"
    for name, entry in files.items():
        size = store.size(name)
        if size is None:
            return f"{name} is missing"
        if size != entry.size:
            return f"{name} has {size} bytes instead of {entry.size}"
    for name in sorted(files)[rank::ranks]:
        if file_hash(store, name).sha256 != files[name].sha256:
            return f"{name} has another checksum than it was written with"
    return ""


def _write(path: Path, state: Any) -> dict[str, Any]:
    """Write one part to disk, through to the device. Returns its checksum and size."""
    with path.open("wb") as stream:
        try:
            torch.save(state, stream)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # torch complains of its archive; this is why
                raise error.__context__ from None
            raise
        stream.flush()
        os.fsync(stream.fileno())
    return file_hash(LocalStore(path.parent), path.name).model_dump()
