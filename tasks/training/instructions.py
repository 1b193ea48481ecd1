"""Instruction records: read, told apart by content, split, encoded and packed."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.tokens.chat import UnfitRecord, check_template, encode_conversation
from tasks.tokens.documents import Split, fraction, split_of
from tasks.tokens.packing import best_fit
from tasks.training.conversations import Unusable, read_conversation
from tasks.training.data import PackedConversations
from tasks.training.plan import is_shard
from tasks.training.recipe import AdaptStage, TuningStage

ALL = "instructions"  # the one group where categories are not told apart
DIFFICULTIES = ("easy", "medium", "hard")


@dataclass(frozen=True)
class Conversation:
    """One record. `id` is the hash of its messages, so that equal records fall into the same split."""

    id: str
    messages: list[dict[str, str]]
    source: str
    category: str
    tests: str = ""  # Python that an answer's code must pass, for the reward `code_tests`


@dataclass
class Instructions:
    """Both splits, and how many records were read, used, and left out for which reason."""

    splits: dict[Split, list[Conversation]] = field(default_factory=lambda: {"train": [], "heldout": []})
    counts: Counter[str] = field(default_factory=Counter)


def read_instructions(uri: str, config: TuningStage) -> Instructions:
    """Records of a folder's shards: {"messages": [{"role", "content"}, …], "source", "category", …}.

    Of an adaptation only its categories. At most `config.max_records`, those with the smallest hashes. Raises DataError
    when a split is left empty.
    """
    conversations, counts = read_all(uri)
    result, found = Instructions(counts=counts), {item.id: item for item in conversations}
    if isinstance(config, AdaptStage) and config.categories:
        outside = [key for key, item in found.items() if item.category not in config.categories]
        result.counts["outside_domain"] = len(outside)
        for key in outside:
            del found[key]
    chosen = sorted(found.values(), key=lambda item: (fraction(item.id, "instructions"), item.id))
    result.counts["beyond_max_records"] = max(0, len(chosen) - config.max_records)
    for conversation in chosen[: config.max_records]:
        result.splits[split_of(conversation.id, config.heldout_share)].append(conversation)
    for split, conversations in result.splits.items():
        if not conversations:
            raise DataError(f"{uri}: no instruction record falls into the {split} split; add records ({result.counts})")
    return result


def read_all(uri: str) -> tuple[list[Conversation], Counter[str]]:
    """Every conversation of a folder's shards, each once, and how many records were read and left out."""
    store, counts = open_store(uri), Counter[str]()
    found: dict[str, Conversation] = {}
    for key in (entry.key for entry in store.list() if is_shard(entry.key)):
        for item in read_shard(store, key):
            counts["read"] += 1
            conversation = _conversation(item.record) if isinstance(item, Row) else None
            if conversation is None:
                counts["unreadable"] += 1
            elif conversation.id in found:
                counts["repeated"] += 1
            else:
                found[conversation.id] = conversation
    return list(found.values()), counts


def _conversation(record: dict[str, Any]) -> Conversation | None:
    try:
        messages = read_conversation(record)
    except Unusable:
        return None
    tests = record.get("tests") or ""
    return Conversation(
        content_hash(messages),
        messages,
        str(record.get("source") or ""),
        str(record.get("category") or "general"),
        "\n".join(map(str, tests)) if isinstance(tests, list) else str(tests),
    )


def grouped(splits: dict[Split, list[Conversation]], config: TuningStage) -> dict[Split, dict[str, list[Conversation]]]:
    """Both splits' conversations by category or difficulty, in the order of names; those of the mixture alone.

    All are under `instructions` when nothing asks for more. Raises DataError when a category of the mixture has no
    conversation to train on.
    """
    group_of = _grouping(splits["train"], config)
    groups: dict[Split, dict[str, list[Conversation]]] = {"train": {}, "heldout": {}}
    for split, conversations in splits.items():
        for conversation in conversations:
            groups[split].setdefault(group_of(conversation), []).append(conversation)
    there = groups["train"]
    wanted = set(config.mixture.shares) if config.mixture else set(there)
    if missing := sorted(wanted - set(there)):
        counts = ", ".join(f"{name} ({len(there[name]):,})" for name in sorted(there))
        raise DataError(
            f"mixture: no record is of category {', '.join(missing)}; there are: {counts}. Add records "
            "(import-instructions --category), or change the mixture of the stage"
        )
    return {split: {name: some[name] for name in sorted(wanted & set(some))} for split, some in groups.items()}


def _grouping(train: list[Conversation], config: TuningStage) -> Callable[[Conversation], str]:
    """The group of a conversation. Difficulty is the length of its answers, cut at the thirds of the training records:
    the more there is to say, the more can go wrong."""
    if config.curriculum and config.curriculum.by == "difficulty":
        sizes = sorted(map(_answered, train))
        cuts = [sizes[len(sizes) // 3], sizes[2 * len(sizes) // 3]]
        return lambda conversation: DIFFICULTIES[bisect_right(cuts, _answered(conversation))]
    if config.mixture or config.curriculum:
        return lambda conversation: conversation.category
    return lambda conversation: ALL


def _answered(conversation: Conversation) -> int:
    return sum(len(message["content"]) for message in conversation.messages if message["role"] == "assistant")


def pack_conversations(
    conversations: list[Conversation], tokenizer: Any, length: int, counts: Counter[str]
) -> PackedConversations:
    """Encode and pack conversations (best fit). One longer than `length` is cut; `counts` says how many.

    A record whose supervised part is cut away, which holds a special token as text, or which the template refuses is
    left out and counted. Raises DataError when the template cannot mark the assistant's tokens, or nothing is left.
    """
    check_template(tokenizer)
    items: list[tuple[np.ndarray, np.ndarray]] = []
    names: list[tuple[str, str]] = []
    for conversation in conversations:
        try:
            ids, mask = encode_conversation(tokenizer, conversation.messages)
        except UnfitRecord as error:
            counts[error.reason] += 1
            continue
        counts["cut"] += len(ids) > length
        if not mask[1:length].any():
            counts["nothing_to_learn"] += 1
            continue
        counts["used"] += 1
        items.append((ids[:length], mask[:length]))
        names.append((conversation.id, conversation.source))
    if not items:
        raise DataError(f"of {len(conversations)} instruction records none can be learnt from ({dict(counts)})")
    bins = best_fit([len(ids) for ids, _ in items], length)
    return PackedConversations(
        [[items[i] for i in members] for members in bins], length, [names[i] for members in bins for i in members]
    )
