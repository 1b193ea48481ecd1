"""What a stage is given: its spec, its job folder, its rank, and how to report and to publish."""

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from tasks.corpus.artifact import NAME, Artifact, content_hash, write_artifact
from tasks.corpus.storage import open_store, upload_folder
from tasks.errors import AthanorError
from tasks.training.job import EVENTS, Job
from tasks.training.plan import StageSpec
from tasks.training.recipe import Role

METRICS = "metrics.jsonl"  # beside the artifact's files, but not hashed, like the events: it holds times


@dataclass(frozen=True)
class Context:
    """One rank's view of a job. `token` is the lease it works under."""

    job: Job
    spec: StageSpec
    token: int
    rank: int
    supervisor: int  # pid of the process that started the ranks
    ranks: int = 1
    attempt: int = 0  # how often the ranks were started again under this token

    @property
    def first(self) -> bool:
        """Whether this is the rank that reports and publishes."""
        return self.rank == 0

    @property
    def output(self) -> Path:
        """Where the artifact's files are put before they are published."""
        return self.job.folder / "output"

    def parent(self, role: str) -> Path:
        """Local folder of a parent artifact."""
        return parent_folder(self.job, self.spec, role)

    def check(self) -> None:
        """Stop when this trainer was replaced, or when nobody watches over it any more."""
        if os.getppid() != self.supervisor:
            raise AthanorError("the supervisor of this trainer is gone; submit the stage again to go on")
        if self.first:
            self.job.check(self.token)

    def report(self, **record: Any) -> dict[str, Any]:
        """Add one line to progress.jsonl, and return it."""
        line = {"stage": self.spec.stage, **record, "memory_mb": memory_mb()}
        if self.first:
            self.job.append(self.token, "progress.jsonl", line)
        return line

    def event(self, name: str, **evidence: Any) -> None:
        """Add one line to events.jsonl, and say it in the log: something that a person may want to look at."""
        if self.first:
            self.job.event(self.token, name, **evidence)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What `progress.jsonl` or `events.jsonl` holds so far; nothing where there is no such file yet."""
        path = self.job.folder / name
        return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def rewind(self, step: int) -> None:
        """Forget reported steps after `step`: they are about to be taken again."""
        path = self.job.folder / "progress.jsonl"
        if self.first and path.exists():
            with self.job.owned(self.token):
                *lines, _torn = path.read_bytes().split(b"\n")  # nothing, or a line that a killed trainer began
                kept = [line for line in lines if orjson.loads(line)["step"] <= step]
                path.write_bytes(b"".join(line + b"\n" for line in kept))

    def summary(self) -> dict[str, Any]:
        """The whole run in a few numbers, from its reported steps; a resumed run counts every step once."""
        steps = self.lines("progress.jsonl")
        tokens, seconds = sum(step["tokens"] for step in steps), sum(step["seconds"] for step in steps)
        return {
            "steps": steps[-1]["step"],
            "train_loss": steps[-1]["loss"],
            "train_tokens": tokens,
            "train_seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds, 1),
            "padding_share": round(1 - tokens / sum(step["slots"] for step in steps), 4),
            "memory_mb": steps[-1]["memory_mb"],
            "ranks": self.ranks,
            "rollbacks": sum(line["event"] == "rolled_back" for line in self.lines(EVENTS)),
        }

    def publish(self, kind: Role, metrics: dict[str, Any]) -> Artifact:
        """Copy the output folder to the store, `artifact.json` last. Only the owner of the lease may."""
        self.job.check(self.token)
        progress = self.job.folder / "progress.jsonl"
        files = sorted(path.relative_to(self.output).as_posix() for path in self.output.rglob("*") if path.is_file())
        for source, name in ((progress, METRICS), (self.job.folder / EVENTS, EVENTS)):
            if source.exists():
                shutil.copyfile(source, self.output / name)
        upload_folder(self.output, self.spec.artifact)
        self._remove_strangers(files)
        inputs = [*self.spec.parents.values(), *(item for item in self.spec.data.values() if item.artifact)]
        self.job.check(self.token)  # what two owners would write is the same, and the first record stays
        return write_artifact(
            self.spec.artifact,
            only=tuple(name for name in files if name not in (METRICS, EVENTS)),
            kind=kind,
            stage=self.spec.stage,
            key=self.spec.key,
            parents=[item.hash for item in inputs],
            parent_uris=[item.uri for item in inputs],
            data={name: item.hash for name, item in self.spec.data.items()},
            config_hash=content_hash(self.spec.config.model_dump()),
            code_version=self.spec.code_version,
            metrics=metrics,
        )

    def _remove_strangers(self, files: list[str]) -> None:
        """Delete what an interrupted attempt left in the artifact's folder and this one did not write again."""
        store = open_store(self.spec.artifact)
        for entry in store.list():
            if entry.key not in {*files, METRICS, EVENTS, NAME}:
                store.delete(entry.key)


def parent_folder(job: Job, spec: StageSpec, role: str) -> Path:
    """A parent artifact's local folder: itself when the store is local, else where the supervisor fetched it to."""
    here = open_store(spec.parents[role].uri).local()
    return here if here is not None else job.folder / "inputs" / role


def memory_mb() -> int:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
