"""Tables of a folder of instruction records: counts over all of them, and a sample."""

import heapq
import json
from collections.abc import Iterator
from typing import Any

import xxhash

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Row, is_shard, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.gates.frames import SAMPLE_ROWS, Subject, share, shown_text, text_measures

ROLES = ("system", "user", "assistant")


def read_instructions(uri: str) -> Subject:
    """Views `summary` (one row, over every record) and `records` (up to SAMPLE_ROWS, drawn by hash).

    A record is {"messages": [{"role", "content"}, …], "id", "source", "category", …}. Raises DataError when the
    folder holds no file.
    """
    store = open_store(uri)
    files = [(entry.key, entry.size) for entry in store.list() if is_shard(entry.key)]
    if not files:
        raise DataError(f"{uri}: no files; expected instruction records such as docstrings.jsonl.zst")
    identity = content_hash(files)
    totals = {"files": len(files), "records": 0, "unreadable_rows": 0, "duplicate_ids": 0, "duplicate_messages": 0}
    seen_ids: set[int] = set()
    seen_messages: set[int] = set()
    drawn: list[tuple[int, str, int, dict[str, Any]]] = []
    for key, item in _items(store, [key for key, _ in files]):
        if not isinstance(item, Row):
            totals["unreadable_rows"] += 1
            continue
        totals["records"] += 1
        totals["duplicate_ids"] += _repeated(seen_ids, item.record.get("id"))
        totals["duplicate_messages"] += _repeated(seen_messages, item.record.get("messages"))
        # The rows with the largest negative hash: the smallest hashes, whatever the order they are read in.
        draw = (-_hash(identity, key, item.index), key, item.index, item.record)
        if len(drawn) < SAMPLE_ROWS:
            heapq.heappush(drawn, draw)
        elif draw[:3] > drawn[0][:3]:
            heapq.heapreplace(drawn, draw)
    rows = [record_row(key, index, record) for _, key, index, record in sorted(drawn, key=lambda draw: draw[1:3])]
    rows_read = totals["records"] + totals["unreadable_rows"]
    summary = {
        **totals,
        "unreadable_share": share(totals["unreadable_rows"], rows_read),
        "duplicate_share": share(totals["duplicate_messages"], totals["records"]),
    }
    return Subject(identity, {"summary": [summary], "records": rows})


def _items(store: Any, keys: list[str]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        for item in read_shard(store, key):
            yield key, item


def _repeated(seen: set[int], value: Any) -> bool:
    """Whether an equal value was met before; a missing one never was."""
    if value is None:
        return False
    digest = _hash(value)
    if digest in seen:
        return True
    seen.add(digest)
    return False


def _hash(*values: Any) -> int:
    return xxhash.xxh3_64_intdigest(json.dumps(values, sort_keys=True, default=str).encode())


def record_row(file: str, index: int, record: dict[str, Any]) -> dict[str, Any]:
    """One record as the contract sees it: without messages its roles are '', for a message that is none 'None'."""
    listed = record.get("messages")
    messages = [item if isinstance(item, dict) else {} for item in (listed if isinstance(listed, list) else [])]
    roles = [str(message.get("role")) for message in messages]
    contents = [message["content"] if isinstance(message.get("content"), str) else "" for message in messages]
    dialogue = roles[1:] if roles[:1] == ["system"] else roles
    measures = [text_measures(content) for content in contents]
    row = {
        "file": file,
        "row": index,
        "id": None if record.get("id") is None else str(record["id"]),
        "roles": " ".join(roles),
        "unknown_roles": sum(role not in ROLES for role in roles),
        "alternates": dialogue == ["user", "assistant"] * (len(dialogue) // 2) + ["user"] * (len(dialogue) % 2),
        "last_role": roles[-1] if roles else "",
        "assistant_messages": roles.count("assistant"),
        "shortest_message": min((item["visible_characters"] for item in measures), default=0),
        "characters": sum(item["characters"] for item in measures),
        "nul_characters": sum(item["nul_characters"] for item in measures),
        "messages": shown_text(" ⏎ ".join(f"{r}: {c}" for r, c in zip(roles, contents, strict=True))),
    }
    for name in ("source", "category"):
        row[name] = None if record.get(name) is None else str(record[name])
    return row
