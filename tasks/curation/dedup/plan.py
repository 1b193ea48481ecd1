"""The plan of one clustering run: its parts, read by every worker from the work folder instead of being sent along.

A part is a run of shards, small enough for a worker's memory budget. Parts of earlier snapshots follow those of this
one. A *ref* names a unit (a document, or a paragraph): part << 40 | position in the part's member file.
"""

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

import orjson
from pydantic import Field

from tasks.corpus.manifest import DATE, Shard
from tasks.corpus.storage import Store, open_store
from tasks.curation.config import CurationConfig, DedupConfig
from tasks.settings import StrictModel

NAME = "plan.json"
SPREAD = 8  # parts that a run is cut into at least, so that several workers have something to do …
WORTH = 2_000  # … unless they would have fewer documents than this
BYTES_A_DOCUMENT = 4096  # of memory in the most demanding step, with all intermediate copies
REF_BITS = 40
DOCUMENT, PARAGRAPH, SENTENCE = "document", "paragraph", "sentence"


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
    earlier: dict[str, list[EarlierPart]] = Field(default_factory=dict, description="level → parts of the index")
    links: dict[str, str] = Field(default_factory=dict, description="level → folder of its links and candidates")
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
        """Number of parts of a level: the run's own, then those of the index."""
        return len(self.plan.parts) + len(self.plan.earlier.get(level, ()))

    def linked(self, level: str) -> Store:
        """Where the members and candidates of a level lie. They depend on signals alone, and outlive this run."""
        return open_store(self.plan.links.get(level, self.work))

    def dedup(self, level: str) -> DedupConfig:
        """The level's own threshold, in the configuration's other terms."""
        base = self.config.dedup
        if level == DOCUMENT or base.paragraphs is None:
            return base
        own = {name: getattr(base.paragraphs, name) for name in ("threshold", "permutations")}
        return base.model_copy(update=own)

    def shards(self, part: int, level: str) -> list[Shard]:
        earlier = self.earlier(part, level)
        return earlier.shards if earlier else self.plan.parts[part]

    def landing(self, part: int, level: str) -> str:
        earlier = self.earlier(part, level)
        return earlier.landing if earlier else self.plan.landing

    def earlier(self, part: int, level: str) -> EarlierPart | None:
        """The part of the index that a part is; None for one of the run's own."""
        own = len(self.plan.parts)
        return self.plan.earlier[level][part - own] if part >= own else None


@lru_cache(maxsize=8)
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
