"""The plan of one clustering run: its parts, read by every worker from the work folder instead of being sent along.

A part is a run of shards, small enough for a worker's memory budget. Parts of earlier snapshots follow those of this
one. A *ref* names a unit (a document, or a paragraph): part << 40 | position in the part's member file.
"""

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

import orjson

from tasks.corpus.manifest import DATE, Shard
from tasks.corpus.storage import Store, open_store
from tasks.curation.config import CurationConfig, DedupConfig
from tasks.settings import StrictModel

NAME = "plan.json"
SPREAD = 8  # parts that a run is cut into at least, so that several workers have something to do …
WORTH = 2_000  # … unless they would have fewer documents than this
BYTES_A_DOCUMENT = 4096  # of memory in the most demanding step, with all intermediate copies
REF_BITS = 40
DOCUMENT, PARAGRAPH = "document", "paragraph"


class EarlierPart(StrictModel):
    """Row groups of an earlier snapshot's index file, and the shards that its rows point into."""

    snapshot: str
    landing: str
    uri: str
    groups: list[int]
    shards: list[Shard]


class Plan(StrictModel):
    """What a clustering run works on."""

    key: str
    output: str
    landing: str
    snapshot: str
    curation: dict[str, Any]
    parts: list[list[Shard]]
    earlier: list[EarlierPart]
    takedowns: list[str]
    index: str = ""


@dataclass(frozen=True)
class Run:
    """A plan, with what follows from it."""

    work: str
    plan: Plan
    config: CurationConfig

    @property
    def store(self) -> Store:
        return open_store(self.work)

    @property
    def budget(self) -> int:
        """Bytes that a worker may use."""
        return self.config.dedup.memory_budget << 20

    def parts(self, level: str) -> int:
        """Number of parts of a level. Paragraphs are compared within their own snapshot."""
        return len(self.plan.parts) + (len(self.plan.earlier) if level == DOCUMENT else 0)

    def dedup(self, level: str) -> DedupConfig:
        """The level's own threshold, in the configuration's other terms."""
        base = self.config.dedup
        if level == DOCUMENT or base.paragraphs is None:
            return base
        return base.model_copy(update={"threshold": base.paragraphs.threshold})

    def shards(self, part: int) -> list[Shard]:
        own = len(self.plan.parts)
        return self.plan.parts[part] if part < own else self.plan.earlier[part - own].shards

    def landing(self, part: int) -> str:
        own = len(self.plan.parts)
        return self.plan.landing if part < own else self.plan.earlier[part - own].landing


@lru_cache(maxsize=4)
def load_run(work: str) -> Run:
    """The run whose work folder is at a URI."""
    plan = Plan.model_validate(orjson.loads(open_store(work).read(NAME)))
    return Run(work, plan, CurationConfig.model_validate(plan.curation))


def cut_into_parts(shards: list[Shard], documents: list[int], budget: int) -> list[list[Shard]]:
    """Consecutive shards with together no more documents than a worker's budget allows; a large shard stands alone."""
    fair = max(-(-sum(documents) // SPREAD), WORTH)
    most = max(1, min(fair, budget // BYTES_A_DOCUMENT))
    parts: list[list[Shard]] = []
    filled = most
    for shard, count in zip(shards, documents, strict=True):
        if not parts or filled + count > most:
            parts.append([])
            filled = 0
        parts[-1].append(shard)
        filled += count
    return parts


def day_of(shard: Shard, snapshot: str) -> int:
    """Day number of the snapshot that a shard belongs to: the date in its path, else that of the run."""
    dates = [folder for folder in shard.key.split("/")[:-1] if DATE.fullmatch(folder)]
    return date.fromisoformat(dates[0] if dates else snapshot).toordinal()
