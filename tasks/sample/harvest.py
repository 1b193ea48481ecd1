"""A sample corpus from the machine itself: what its packages say, document, license and translate, as raw shards.

Nothing is cleaned and nothing removed: near-duplicates (licences, vendored copies, changelogs), lists and generated
files are what a curation pipeline is for. Absent sources are absent; their share goes to the others.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.corpus.shards import write_shard
from tasks.errors import ConfigError, DataError
from tasks.sample import man_pages, package_texts, python_code, system, translations
from tasks.sample.landing import Landing
from tasks.sample.sample import Sample, is_chinese

HARVEST_VERSION = 1  # raise when the same machine would give other bytes
SHARD_BYTES = 2_500_000  # text of one shard, before compression
FORMATS = (".jsonl.zst", ".jsonl.gz", ".parquet")
Progress = Callable[[dict[str, Any]], None]

# Share of the corpus in bytes that each source gets while it lasts; the scarce ones choose first.
SOURCES: dict[str, tuple[float, Callable[[int], Iterator[Sample]]]] = {
    "names-zh": (0.01, translations.names),
    "docs-zh": (0.01, translations.help_texts),
    "man-zh": (0.01, man_pages.chinese),
    "translations-zh": (0.12, translations.messages),
    "man-other": (0.01, man_pages.foreign),
    "package-descriptions": (0.07, package_texts.descriptions),
    "python-docs": (0.07, package_texts.documents),
    "licences": (0.05, package_texts.licences),
    "debian-descriptions": (0.03, system.descriptions),
    "debian-licences": (0.03, system.licences),
    "debian-doc": (0.08, system.documents),
    "man": (0.16, man_pages.english),
    "docstrings": (0.16, python_code.docstrings),
    "python-source": (0.24, python_code.sources),
}


def harvest_corpus(
    into: str,
    *,
    min_documents: int = 4000,
    min_bytes: int = 30_000_000,
    seed: int = 0,
    snapshot: str | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Write INTO/<snapshot>/<source>/part-NNN.{jsonl.zst,jsonl.gz,parquet}; reuse a finished harvest.

    At least `min_documents` and `min_bytes` of UTF-8 text, at most about 3 times and 1.15 times as much. `snapshot`
    is a date (YYYY-MM-DD); by default that of the last harvest in this folder, else today's (UTC). `on_progress`
    gets {"step", "source", "documents", "bytes"}: totals so far.

    Returns {"snapshot", "documents", "bytes", "chinese_documents", "shards", "sources", "files", "seconds", "reused"}.
    Raises DataError when the machine has too little text, or the dated folder holds someone else's data.
    """
    started = time.monotonic()
    landing = Landing(into)
    date = _date(snapshot or landing.folder_of("corpus"))
    parameters = {
        "version": HARVEST_VERSION,
        "snapshot": date,
        "min_documents": min_documents,
        "min_bytes": min_bytes,
        "seed": seed,
    }
    done = landing.finished("corpus", parameters)
    if done is not None:
        return {**done, "seconds": round(time.monotonic() - started, 1), "reused": True}

    def fill(folder: Path) -> dict[str, Any]:
        limits = Limits(min_documents, min_bytes, 3 * min_documents, min_bytes * 23 // 20)
        taken = take(limits, seed, on_progress or (lambda progress: None))
        documents, size = sum(map(len, taken.values())), sum(sample.size for some in taken.values() for sample in some)
        if documents < min_documents or size < min_bytes:
            raise DataError(
                f"{into}: this machine gives {documents:,} documents and {size:,} bytes of text; "
                f"{min_documents:,} and {min_bytes:,} were asked for. Install requirements.txt, or ask for less"
            )
        return {"snapshot": date, "documents": documents, "bytes": size, **write_shards(folder, taken)}

    result = landing.write("corpus", date, parameters, fill)
    return {**result, "seconds": round(time.monotonic() - started, 1), "reused": False}


@dataclass(frozen=True)
class Limits:
    """How much to take: no less than the least of both measures, and from there no more than the most of either."""

    min_documents: int
    min_bytes: int
    max_documents: int
    max_bytes: int

    def wants_more(self, documents: int, size: int) -> bool:
        enough = documents >= self.min_documents and size >= self.min_bytes
        return not enough or (documents < self.max_documents and size < self.max_bytes)


@dataclass
class _Source:
    name: str
    weight: float
    samples: Iterator[Sample]
    taken: list[Sample] = field(default_factory=list)

    def draw(self, documents: float, size: float) -> tuple[int, bool]:
        """Take samples up to a share of documents or bytes. Returns the bytes taken and whether more may be had."""
        count, drawn = 0, 0
        for sample in self.samples:
            self.taken.append(sample)
            count, drawn = count + 1, drawn + sample.size
            if count >= documents or drawn >= size:
                return drawn, True
        return drawn, False


def take(limits: Limits, seed: int, on_progress: Progress) -> dict[str, list[Sample]]:
    """Samples by source. Room is dealt out by weight, again and again over the sources that are not yet exhausted.

    A share is at least one document, so that the least of one measure is reached even after the other has its most.
    """
    every = [_Source(name, weight, samples(seed)) for name, (weight, samples) in SOURCES.items()]
    live = list(every)
    documents = size = 0
    while live and limits.wants_more(documents, size):
        total = sum(source.weight for source in live)
        room_documents, room_bytes = limits.max_documents - documents, limits.max_bytes - size
        for source in list(live):
            share, before = source.weight / total, len(source.taken)
            drawn, more = source.draw(room_documents * share, room_bytes * share)
            documents, size = documents + len(source.taken) - before, size + drawn
            on_progress({"step": "harvest", "source": source.name, "documents": documents, "bytes": size})
            if not more:
                live.remove(source)
            if not limits.wants_more(documents, size):
                break
    return {source.name: source.taken for source in every if source.taken}


def write_shards(folder: Path, taken: dict[str, list[Sample]]) -> dict[str, Any]:
    """Write every source's samples, ordered by id, in parts of some `SHARD_BYTES`; formats take turns."""
    shards = 0
    sources = {}
    for name in sorted(taken):
        samples = sorted(taken[name], key=lambda sample: sample.id)
        parts = list(_parts(samples))
        for number, part in enumerate(parts):
            path = folder / name / f"part-{number:03d}{FORMATS[shards % len(FORMATS)]}"
            write_shard(path, [sample.record() for sample in part])
            shards += 1
        size = sum(sample.size for sample in samples)
        sources[name] = {"documents": len(samples), "bytes": size, "shards": len(parts)}
    chinese = sum(is_chinese(sample.text) for samples in taken.values() for sample in samples)
    return {"chinese_documents": chinese, "shards": shards, "sources": sources}


def _parts(samples: list[Sample]) -> Iterator[list[Sample]]:
    part: list[Sample] = []
    size = 0
    for sample in samples:
        if part and size + sample.size > SHARD_BYTES:
            yield part
            part, size = [], 0
        part.append(sample)
        size += sample.size
    yield part


def _date(snapshot: str | None) -> str:
    """A valid snapshot date; today's in UTC when none is given. Raises ConfigError for anything else."""
    if snapshot is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.strptime(snapshot, "%Y-%m-%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError:
        raise ConfigError(f"snapshot {snapshot!r} is no date; expected YYYY-MM-DD, e.g. 2026-01-31") from None
