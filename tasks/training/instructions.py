"""Instruction records: read, told apart by content, split, encoded and packed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.tokens.chat import check_template, encode_conversation
from tasks.tokens.documents import Split, fraction, split_of
from tasks.tokens.packing import best_fit
from tasks.training.data import PackedConversations
from tasks.training.plan import is_shard
from tasks.training.recipe import SftStage

ROLES = ("system", "user", "assistant")


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


def read_instructions(uri: str, config: SftStage) -> Instructions:
    """Records of a folder's shards: {"messages": [{"role", "content"}, …], "source", "category", …}.

    At most `config.max_records`, those with the smallest hashes. Raises DataError when a split is left empty.
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
    chosen = sorted(found.values(), key=lambda item: (fraction(item.id, "instructions"), item.id))
    result.counts["beyond_max_records"] = max(0, len(chosen) - config.max_records)
    for conversation in chosen[: config.max_records]:
        result.splits[split_of(conversation.id, config.heldout_share)].append(conversation)
    for split, conversations in result.splits.items():
        if not conversations:
            raise DataError(f"{uri}: no instruction record falls into the {split} split; add records ({result.counts})")
    return result


def _conversation(record: dict[str, Any]) -> Conversation | None:
    messages = record.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    plain = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return None
        if not isinstance(message.get("content"), str):
            return None
        plain.append({"role": message["role"], "content": message["content"]})
    return Conversation(
        content_hash(plain), plain, str(record.get("source") or ""), str(record.get("category") or "general")
    )


def pack_conversations(
    conversations: list[Conversation], tokenizer: Any, length: int, counts: Counter[str]
) -> PackedConversations:
    """Encode and pack conversations (best fit). One longer than `length` is cut; `counts` says how many.

    A record whose supervised part is cut away, or which holds a special token as text, is left out and counted.
    Raises DataError when the chat template cannot mark the assistant's tokens, or nothing is left.
    """
    check_template(tokenizer)
    items: list[tuple[np.ndarray, np.ndarray]] = []
    for conversation in conversations:
        try:
            ids, mask = encode_conversation(tokenizer, conversation.messages)
        except DataError:
            counts["special_token_in_text"] += 1
            continue
        counts["cut"] += len(ids) > length
        if not mask[1:length].any():
            counts["nothing_to_learn"] += 1
            continue
        counts["used"] += 1
        items.append((ids[:length], mask[:length]))
    if not items:
        raise DataError(f"of {len(conversations)} instruction records none can be learnt from ({dict(counts)})")
    bins = best_fit([len(ids) for ids, _ in items], length)
    return PackedConversations([[items[i] for i in members] for members in bins], length)
