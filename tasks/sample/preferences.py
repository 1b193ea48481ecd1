"""Preference records from the machine itself: what a function's docstring says, against a worse answer made from it.

No person judged these pairs, a rule made them, and every record says so (`synthetic`). They teach a reward model what
an answer in one piece looks like; what people like better, only people can teach it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Row, read_shard, write_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.sample import code_tasks, instructions
from tasks.sample.conversation import Conversation
from tasks.sample.harvest import Progress
from tasks.sample.landing import Landing
from tasks.sample.sample import rank

PREFERENCES_VERSION = 1  # raise when the same machine would give other bytes
FOLDER, FILE = "preferences", "docstrings.jsonl.zst"
DOMAIN = "docstrings"
MAX_QUESTION, MAX_ANSWER = 600, 400  # characters: a pair is read twice, and short ones teach as much
MIN_WORDS = 6
REPEATED = 3  # words that are said again and again


def harvest_preferences(
    into: str,
    *,
    min_records: int = 800,
    max_records: int = 1200,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """Write INTO/preferences/docstrings.jsonl.zst; reuse a finished harvest.

    Functions that the instruction records there explain are passed over: a model was tuned on those docstrings. Returns
    {"records", "kinds", "files", "seconds", "reused"}. Raises DataError when there are fewer than `min_records`.
    """
    started = time.monotonic()
    landing, tuned_on = Landing(into), instruction_ids(into)
    parameters = {
        "version": PREFERENCES_VERSION,
        "min_records": min_records,
        "max_records": max_records,
        "seed": seed,
        "instructions": content_hash(sorted(tuned_on)),
    }
    done = landing.finished("preferences", parameters)
    if done is not None:
        return {**done, "seconds": round(time.monotonic() - started, 1), "reused": True}

    def fill(folder: Path) -> dict[str, Any]:
        records: list[dict[str, Any]] = []
        for record in judgements(seed, tuned_on):
            records.append(record)
            if len(records) == max_records:
                break
        if on_progress:
            on_progress({"step": "preferences", "source": DOMAIN, "records": len(records)})
        if len(records) < min_records:
            raise DataError(
                f"{into}: this machine gives {len(records):,} preference records; {min_records:,} were asked for. "
                "Install requirements.txt, or ask for fewer"
            )
        write_shard(folder / FILE, sorted(records, key=lambda record: record["id"]))
        kinds = Counter(record["id"].rsplit("#", 1)[1] for record in records)
        return {"records": len(records), "kinds": dict(sorted(kinds.items()))}

    result = landing.write("preferences", FOLDER, parameters, fill)
    return {**result, "seconds": round(time.monotonic() - started, 1), "reused": False}


def instruction_ids(into: str) -> set[str]:
    """Ids of the instruction records that were harvested into the same landing zone."""
    store = open_store(into)
    keys = [entry.key for entry in store.list() if entry.key.startswith(f"{instructions.FOLDER}/")]
    return {str(item.record.get("id")) for key in keys for item in read_shard(store, key) if isinstance(item, Row)}


def judgements(seed: int, passed_over: set[str]) -> Iterator[dict[str, Any]]:
    """Records {"id", "prompt", "responses", "ranks", "domain", "synthetic", "source"}: of each function one for every
    way to be worse."""
    before: Conversation | None = None
    for talk in code_tasks.conversations(seed + 1):  # other files come first than for the instruction records
        if talk.category != "explanation" or talk.id in passed_over or not _is_short(talk):
            continue
        if before is not None:
            yield from _of_function(talk, before, seed)
        before = talk


def _of_function(talk: Conversation, other: Conversation, seed: int) -> Iterator[dict[str, Any]]:
    question, answer = talk.turns[0]
    for kind, worse in WORSE.items():
        text = worse(answer, other.turns[0][1], seed)
        if " ".join(text.split()) != " ".join(answer.split()):
            yield {
                "id": f"{talk.id}#{kind}",
                "prompt": [{"role": "user", "content": question}],
                "responses": [answer, text],
                "ranks": [1, 2],
                "domain": DOMAIN,
                "synthetic": True,
                "source": DOMAIN,
            }


def _is_short(talk: Conversation) -> bool:
    question, answer = talk.turns[0]
    return len(question) <= MAX_QUESTION and len(answer) <= MAX_ANSWER and len(answer.split()) >= MIN_WORDS


def shuffled(answer: str, other: str, seed: int) -> str:
    """The same words in another order."""
    words = list(enumerate(answer.split()))
    return " ".join(word for _, word in sorted(words, key=lambda item: rank(seed, f"{item[0]} {answer}")))


def repeated(answer: str, other: str, seed: int) -> str:
    """As many words, but the first few of them again and again."""
    words = answer.split()
    return " ".join(words[place % REPEATED] for place in range(len(words)))


def cut(answer: str, other: str, seed: int) -> str:
    """Ends in the middle of a sentence, before its half."""
    words = answer.split()
    return " ".join(words[: max(2, len(words) * (1 + rank(seed, answer)[0] % 2) // 4)])


def another(answer: str, other: str, seed: int) -> str:
    """Well said, but of another function."""
    return other


WORSE: dict[str, Callable[[str, str, int], str]] = {
    "shuffled": shuffled,
    "repeated": repeated,
    "cut": cut,
    "another": another,
}
