"""Instruction records: read, told apart by content, split, encoded and packed."""

from collections import Counter
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


@dataclass(frozen=True)
class Conversation:
    """One record. `id` is the hash of its messages, so that equal records fall into the same split."""

    id: str
    messages: list[dict[str, str]]
    source: str
    category: str


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
    store, result = open_store(uri), Instructions()
    found: dict[str, Conversation] = {}
    for key in (entry.key for entry in store.list() if is_shard(entry.key)):
        for item in read_shard(store, key):
            result.counts["read"] += 1
            conversation = _conversation(item.record) if isinstance(item, Row) else None
            if conversation is None:
                result.counts["unreadable"] += 1
            elif conversation.id in found:
                result.counts["repeated"] += 1
            else:
                found[conversation.id] = conversation
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


def _conversation(record: dict[str, Any]) -> Conversation | None:
    try:
        messages = read_conversation(record)
    except Unusable:
        return None
    return Conversation(
        content_hash(messages), messages, str(record.get("source") or ""), str(record.get("category") or "general")
    )


def by_category(conversations: list[Conversation], config: TuningStage) -> dict[str, list[Conversation]]:
    """Conversations by category, in the order of names; all under `instructions` when nothing asks for more.

    Raises DataError when a category of the mixture has no conversation.
    """
    if not config.by_category:
        return {ALL: conversations}
    groups: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        groups.setdefault(conversation.category, []).append(conversation)
    if config.mixture:
        missing = sorted(set(config.mixture.shares) - set(groups))
        if missing:
            there = ", ".join(f"{name} ({len(groups[name]):,})" for name in sorted(groups))
            raise DataError(
                f"mixture: no record is of category {', '.join(missing)}; there are: {there}. Add records "
                "(import-instructions --category), or change the mixture of the stage"
            )
        groups = {name: groups[name] for name in config.mixture.shares}
    return dict(sorted(groups.items()))


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
