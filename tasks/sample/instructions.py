"""Instruction records from the machine itself: functions and their docstrings, descriptions, translated messages."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.corpus.shards import write_shard
from tasks.errors import DataError
from tasks.sample import code_tasks, text_tasks
from tasks.sample.conversation import Conversation, Unseen
from tasks.sample.harvest import Progress
from tasks.sample.landing import Landing

INSTRUCTIONS_VERSION = 1  # raise when the same machine would give other bytes
FOLDER = "instructions"

# Most records of a category, as a share of the whole; what one lacks goes to those after it.
SHARES = {"translation": 0.15, "general": 0.2, "dialogue": 0.1, "explanation": 0.25, "code": 0.3}


def harvest_instructions(
    into: str,
    *,
    min_records: int = 2000,
    max_records: int = 4000,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Write INTO/instructions/{docstrings,descriptions,translations}.jsonl.zst; reuse a finished harvest.

    Records are {"id", "messages", "source", "category"}, without two that share a question or an answer. Returns
    {"records", "categories", "files", "seconds", "reused"}. Raises DataError when there are fewer than `min_records`.
    """
    started = time.monotonic()
    landing = Landing(into)
    parameters = {
        "version": INSTRUCTIONS_VERSION,
        "min_records": min_records,
        "max_records": max_records,
        "seed": seed,
    }
    done = landing.finished("instructions", parameters)
    if done is not None:
        return {**done, "seconds": round(time.monotonic() - started, 1), "reused": True}

    def fill(folder: Path) -> dict[str, Any]:
        files = collect(max_records, seed, on_progress or (lambda progress: None))
        categories = Counter(conversation.category for some in files.values() for conversation in some)
        if categories.total() < min_records:
            raise DataError(
                f"{into}: this machine gives {categories.total():,} instruction records; {min_records:,} were asked "
                "for. Install requirements.txt, or ask for fewer"
            )
        for name, conversations in files.items():
            ordered = sorted(conversations, key=lambda conversation: conversation.id)
            write_shard(folder / f"{name}.jsonl.zst", [conversation.record() for conversation in ordered])
        return {"records": categories.total(), "categories": dict(sorted(categories.items()))}

    result = landing.write("instructions", FOLDER, parameters, fill)
    return {**result, "seconds": round(time.monotonic() - started, 1), "reused": False}


def collect(max_records: int, seed: int, on_progress: Progress) -> dict[str, list[Conversation]]:
    """Conversations by file. Texts first: what a small machine lacks of them is made up for by code."""
    unseen = Unseen()
    files: dict[str, list[Conversation]] = {}
    room = max_records
    for name, stream, categories in (
        ("translations", text_tasks.translations(seed), ("translation",)),
        ("descriptions", text_tasks.descriptions(seed), ("general",)),
        ("docstrings", code_tasks.conversations(seed), ("dialogue", "explanation", "code")),
    ):
        last = name == "docstrings"
        share = sum(SHARES[category] for category in categories)
        places = room if last else round(max_records * share)
        quota = Counter({category: int(places * SHARES[category] / share) for category in categories})
        files[name] = list(_draw(stream, quota, unseen))
        room -= len(files[name])
        on_progress({"step": "instructions", "source": name, "records": max_records - room})
    return {name: conversations for name, conversations in files.items() if conversations}


def _draw(stream: Iterator[Conversation], quota: Counter[str], unseen: Unseen) -> Iterator[Conversation]:
    """New conversations until every category has its number, or there are no more."""
    for conversation in stream:
        if quota[conversation.category] > 0 and unseen(conversation):
            quota[conversation.category] -= 1
            yield conversation
            if not +quota:
                return
