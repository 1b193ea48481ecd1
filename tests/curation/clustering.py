"""Texts through every step of the clustering, without signals and rules."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from distributed import Client

from tasks.corpus.document import doc_id
from tasks.corpus.manifest import Shard
from tasks.corpus.storage import to_json
from tasks.curation.config import CurationConfig, DedupConfig
from tasks.curation.dedup.levels import decide, find_candidates
from tasks.curation.dedup.members import finished_units, write_units
from tasks.curation.dedup.pieces import read_piece
from tasks.curation.dedup.plan import DOCUMENT, NAME, REF_BITS, Plan, load_run
from tasks.curation.dedup.shingles import bands_and_rows, signature
from tasks.curation.dedup.units import UNITS, band_hashes, packed


@dataclass(frozen=True)
class Lost:
    """A text that lost, by its number: to which, and how similar they are."""

    number: int
    twin: int
    rule: str
    similarity: float


@dataclass(frozen=True)
class Members:
    """The member step of given texts; sent to the workers."""

    texts: list[list[str]]  # by part

    def __call__(self, part: int, work: str) -> dict[str, int]:
        run = load_run(work)
        if (status := finished_units(run, DOCUMENT, part)) is not None:
            return status
        config, texts = run.dedup(DOCUMENT), self.texts[part]
        signatures = np.array([signature(text, config) for text in texts]).reshape(-1, config.permutations)
        ids = [bytes.fromhex(doc_id(text)) for text in texts]
        columns = {
            "day": [1] * len(texts),
            "characters": [len(text) for text in texts],
            "doc_id": ids,
            "source": ["web"] * len(texts),
            "source_id": [""] * len(texts),
            "checksum": [f"{part:032x}"] * len(texts),
            "row": list(range(len(texts))),
            "occurrence": [0] * len(texts),
            "start": [0] * len(texts),
            "end": [len(text) for text in texts],
            "shard": [0] * len(texts),
            "identity": ids,
            "settled": [False] * len(texts),
            "bands": packed(band_hashes(signatures, *bands_and_rows(config))),
        }
        return write_units(run, DOCUMENT, part, iter([pa.table(columns, schema=UNITS)]))


def plan_texts(
    folder: Path, texts: list[str], config: DedupConfig = DedupConfig(), parts: int = 3  # noqa: B008 (frozen)
) -> tuple[str, Members]:
    """Shards with the texts dealt out over them, and a plan for them. Returns the work folder and the member step."""
    parts = max(1, min(parts, len(texts)))
    dealt = [texts[number::parts] for number in range(parts)]
    shards = []
    (folder / "in").mkdir(parents=True)
    for number, part in enumerate(dealt):
        lines = [orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE) for text in part]
        (folder / "in" / f"{number}.jsonl").write_bytes(b"".join(lines))
        shards.append(Shard(id=f"s{number}", key=f"{number}.jsonl", size=1, checksum=f"{number:032x}", group="g"))
    whole = CurationConfig(schema_version=1, dedup=config, rules={})
    plan = Plan(
        key="k",
        output=str(folder / "out"),
        landing=str(folder / "in"),
        snapshot="2026-01-01",
        curation=whole.model_dump(),
        parts=[[shard] for shard in shards],
        takedowns=[],
    )
    work = folder / "work"
    work.mkdir()
    (work / NAME).write_bytes(to_json(plan.model_dump()))
    return str(work), Members(dealt)


def find_duplicates(client: Client, work: str, level: str, members: Members) -> dict[str, Any]:
    """All steps of a level, in which every unit takes part. Returns what they counted."""
    return find_candidates(client, work, level, members) | decide(client, work, level)


def cluster_texts(
    client: Client,
    folder: Path,
    texts: list[str],
    config: DedupConfig = DedupConfig(),  # noqa: B008 (frozen)
    parts: int = 3,
) -> list[Lost]:
    """Who loses among the texts, in the order of their numbers."""
    work, members = plan_texts(folder, texts, config, parts)
    find_duplicates(client, work, DOCUMENT, members)
    return sorted(losers(work, len(members.texts)), key=lambda lost: lost.number)


def losers(work: str, parts: int) -> list[Lost]:
    run = load_run(work)
    found = []
    for part in range(parts):
        for owner in range(parts):
            for table in read_piece(run.store, f"{DOCUMENT}/decided/{part:05d}", owner):
                for item in table.to_pylist():
                    twin = item["twin_row"] * parts + (item["twin"] >> REF_BITS)
                    number = item["row"] * parts + (item["ref"] >> REF_BITS)
                    found.append(Lost(number, twin, "exact" if item["exact"] else "near", item["similarity"]))
    return found
