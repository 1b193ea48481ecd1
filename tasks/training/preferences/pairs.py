"""Pairs of answers, better and worse, as reward models and policies learn from them; split by prompt."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.tokens.documents import Split, split_of
from tasks.training.conversations import Messages, Unusable
from tasks.training.plan import is_shard
from tasks.training.preferences.records import read_preference


@dataclass(frozen=True)
class Pair:
    """Two answers to a prompt. In a `tie` neither is better; `margin` is by how much more `chosen` was scored.

    The pairs of one record weigh 1 together, however many answers were ranked: they are not independent (Ouyang et al.
    2022, §3.5). `prompt_id` is the hash of the prompt, `record_id` that of the judgement.
    """

    prompt_id: str
    record_id: str
    prompt: Messages
    chosen: str
    rejected: str
    weight: float
    margin: float
    tie: bool
    domain: str
    criterion: str
    source: str
    synthetic: bool


@dataclass
class Preferences:
    """Both splits, and how many records were read, used, and left out for which reason."""

    splits: dict[Split, list[Pair]] = field(default_factory=lambda: {"train": [], "heldout": []})
    counts: Counter[str] = field(default_factory=Counter)


def pairs_of(record: dict[str, Any]) -> list[Pair]:
    """Every pair of a record's answers, of weight 1 in all. Their margin is the difference of scores, 0 without any."""
    ranks, scores, responses = record["ranks"], record["scores"], record["responses"]
    prompt_id = content_hash(record["prompt"])[:32]
    found = []
    couples = list(combinations(range(len(ranks)), 2))
    for first, second in couples:
        better, worse = (first, second) if ranks[first] <= ranks[second] else (second, first)
        found.append(
            Pair(
                prompt_id=prompt_id,
                record_id=record["id"],
                prompt=record["prompt"],
                chosen=responses[better],
                rejected=responses[worse],
                weight=1 / len(couples),
                margin=scores[better] - scores[worse] if scores else 0.0,
                tie=ranks[first] == ranks[second],
                domain=record["domain"],
                criterion=record["criterion"],
                source=record["source"],
                synthetic=record["synthetic"],
            )
        )
    return found


def read_records(uri: str) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Every preference record of a folder's shards in the order of their ids, each once; and the counts."""
    store, counts = open_store(uri), Counter[str]()
    found: dict[str, dict[str, Any]] = {}
    for key in (entry.key for entry in store.list() if is_shard(entry.key)):
        for item in read_shard(store, key):
            counts["read"] += 1
            if not isinstance(item, Row):
                counts["unreadable"] += 1
                continue
            try:
                record = read_preference(item.record)
            except Unusable as error:
                counts[error.reason] += 1
                continue
            counts["repeated"] += record["id"] in found
            found[record["id"]] = record
    counts["used"] = len(found)
    return [found[key] for key in sorted(found)], counts


def read_preferences(uri: str, *, domain: str | None, heldout_share: float) -> Preferences:
    """Pairs of a folder's records of one domain (None: of all), split by prompt.

    A prompt is wholly on one side, so that no held-out pair is about an answer that was trained on. Raises DataError
    when a side is left empty.
    """
    records, counts = read_records(uri)
    result = Preferences(counts=counts)
    chosen = [record for record in records if domain is None or record["domain"] == domain]
    counts["outside_domain"] = len(records) - len(chosen)
    for pair in (pair for record in chosen for pair in pairs_of(record)):
        result.splits[split_of(pair.prompt_id, heldout_share)].append(pair)
    for split, pairs in result.splits.items():
        if not any(not pair.tie for pair in pairs):
            known = ", ".join(sorted({record["domain"] for record in records})) or "none"
            raise DataError(
                f"{uri}: no pair{f' of domain {domain}' if domain else ''} falls into the {split} split (domains "
                f"there: {known}; {dict(counts)}); add preference records"
            )
    return result


def criteria_of(pairs: Iterable[Pair]) -> list[str]:
    """The criteria that the pairs were judged by, in the order of their names."""
    return sorted({pair.criterion for pair in pairs})
