"""A job's checkpoints in the store, so that a trainer on another machine goes on where a lost one stopped.

    <store>/jobs/<key>/lease.json                           who trains this, of all machines that share the store
    <store>/jobs/<key>/checkpoints/step-00000040-<hash>/    one checkpoint, by the hash of its own record
        …                                                   its files
        job/…                                               what the job had reported, and passed over, by then
        mirror.json                                         SHA-256 and size of every file; put last, if absent

The job's folder lies on one machine. Where the store does too nothing is copied. Training waits for no copy: the
supervisor makes it beside the ranks, and what was not copied when the machine was lost is trained again.
"""

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from tasks.corpus.artifact import FileEntry, file_hash
from tasks.corpus.lease import Lease
from tasks.corpus.storage import LocalStore, join, open_store, to_json
from tasks.errors import AthanorError, DataError, StorageError
from tasks.training.checkpoint import COMPLETE, complete_steps, problem
from tasks.training.job import EVENTS, Job, place
from tasks.training.spikes import FILE as ROLLBACKS

MARKER = "mirror.json"
TOLD = ("progress.jsonl", EVENTS, ROLLBACKS)  # of the job's folder, without which no trainer could go on to the bit
LOOK = 1.0  # seconds between two looks for a new checkpoint


@contextmanager
def mirrored(job: Job, token: int, lease: Lease) -> Iterator[None]:
    """Fetch the newest checkpoint if the store has a later one, and keep the store's like the folder's meanwhile.

    They are deleted when the block ends well: the artifact is there.
    """
    mirror, ended = _Mirror(job, token, lease), threading.Event()
    mirror.fetch()

    def follow() -> None:
        try:
            while not ended.wait(LOOK):
                mirror.follow()
        except AthanorError as error:  # replaced; the main thread meets it too
            print(f"checkpoints are no longer copied: {error}", flush=True)

    thread = threading.Thread(target=follow, name="checkpoints' mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    mirror.clear()


class _Mirror:
    """The checkpoints of one job in its folder and in its store."""

    def __init__(self, job: Job, token: int, lease: Lease) -> None:
        self.job, self.token, self.lease = job, token, lease
        self.folder = job.folder / "checkpoints"
        self.store = open_store(join(place(job), "checkpoints"))
        self.told = ""  # the last failure, so that it is said once

    def there(self) -> list[str]:
        """Names of the store's checkpoints that are complete, oldest first."""
        return [entry.key.split("/")[0] for entry in self.store.list() if entry.key.endswith(f"/{MARKER}")]

    def follow(self) -> None:
        """Copy what is new, and delete what the folder has no more. A store that is away is tried again later.

        Raises LeaseLost or StorageError when another owner has taken over.
        """
        try:
            here = self._here()
            new = [name for name in here if name not in self.there()]
            for name in new:
                self._copy(name, here[name])
            if new:
                self._delete_all_but(set(here))
                self.told = ""
        except FileNotFoundError:
            return  # deleted since it was seen: an older one makes room
        except StorageError as error:
            self._own()
            if str(error) != self.told:
                self.told = str(error)
                self.job.event(self.token, "checkpoint_not_copied", why=self.told)

    def _here(self) -> dict[str, Path]:
        """The folder's checkpoints by the name they have in the store."""
        folders = [self.folder / f"step-{step:08d}" for step in complete_steps(self.folder)]
        return {f"{path.name}-{_digest((path / COMPLETE).read_bytes())[:12]}": path for path in folders}

    def _own(self) -> None:
        self.job.check(self.token)
        self.lease.check()

    def _copy(self, name: str, source: Path) -> None:
        record = (source / COMPLETE).read_bytes()
        files: dict[str, Any] = orjson.loads(record)["files"]
        told = {
            f"job/{part}": _whole_lines(self.job.folder / part) for part in TOLD if (self.job.folder / part).exists()
        }
        for part in files:
            if not (source / part).exists():
                raise FileNotFoundError(source / part)
            self.store.upload(source / part, f"{name}/{part}")
        small = {COMPLETE: record, **told}
        for part, data in small.items():
            self.store.write(f"{name}/{part}", data)
            files[part] = {"sha256": _digest(data), "size": len(data)}
        self._own()
        self.store.write(f"{name}/{MARKER}", to_json({"schema_version": 1, "files": files}), if_absent=True)

    def _delete_all_but(self, kept: set[str]) -> None:
        """The markers first: what is being deleted is no checkpoint."""
        self._own()
        strangers = [entry.key for entry in self.store.list() if entry.key.split("/")[0] not in kept]
        for key in sorted(strangers, key=lambda key: not key.endswith(f"/{MARKER}")):
            self.store.delete(key)

    def clear(self) -> None:
        """The stage is finished: nobody will go on from these."""
        try:
            self._delete_all_but(set())
        except StorageError as error:
            self.job.event(self.token, "copies_left", why=str(error))

    def fetch(self) -> None:
        """Bring the store's newest whole checkpoint into the folder, unless that has one as late."""
        shutil.rmtree(self.folder / ".fetching", ignore_errors=True)
        whole = [step for step in complete_steps(self.folder) if not problem(self.folder / f"step-{step:08d}")]
        events: list[tuple[str, dict[str, Any]]] = []  # told at the end: the job's own may be replaced by older ones
        for name in reversed(self.there()):
            step = int(name.split("-")[1])
            if step <= max(whole, default=-1):
                break
            try:
                self._fetch(name, self.folder / f"step-{step:08d}")
            except (DataError, ValueError, KeyError) as error:
                events.append(("checkpoint_skipped", {"step": step, "why": f"in the store: {error}"}))
                continue
            events.append(("checkpoint_fetched", {"step": step, "source": f"{self.store.uri}/{name}"}))
            break
        for event, evidence in events:
            self.job.event(self.token, event, **evidence)

    def _fetch(self, name: str, target: Path) -> None:
        """Download into a folder beside, compare every checksum, then give it its name. Raises DataError."""
        arriving = self.folder / ".fetching"
        for part, entry in orjson.loads(self.store.read(f"{name}/{MARKER}"))["files"].items():
            path = arriving / part
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self.store.exists(f"{name}/{part}"):
                raise DataError(f"{part} is missing")
            self.store.download(f"{name}/{part}", path)
            if file_hash(LocalStore(arriving), part) != FileEntry.model_validate(entry):
                raise DataError(f"{part} has another checksum than it was written with")
        with self.job.owned(self.token):
            for part in TOLD:
                (self.job.folder / part).unlink(missing_ok=True)
                if (arriving / "job" / part).exists():
                    (arriving / "job" / part).replace(self.job.folder / part)
            shutil.rmtree(arriving / "job", ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)  # one that was not whole
            arriving.rename(target)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _whole_lines(path: Path) -> bytes:
    """The file without a line that is being written."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1] if path.suffix == ".jsonl" else data
