"""Records of other tools, brought into one form: what fits is written, the rest is set aside with a reason.

INTO/<name>.jsonl.zst              records {"id", "messages", "source", "category", "source_id"}, or preferences
INTO/_import/<name>.quarantine.jsonl.zst   rows that do not fit: {"row", "offset", "reason", "detail", "record"}
INTO/_import/<name>.json           counts: read = imported + repeated + quarantined
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.corpus.shards import Item, Row, read_shard, stem, write_shard
from tasks.corpus.storage import join, open_store, write_json
from tasks.errors import ConservationError, DataError
from tasks.training.conversations import Unusable, read_conversation
from tasks.training.plan import is_shard
from tasks.training.preferences.records import read_preference

Convert = Callable[[dict[str, Any], str], dict[str, Any]]
PLURAL = {"category": "categories", "domain": "domains"}
ASIDE = "_import"  # names that begin with '_' are no data


def import_instructions(
    uri: str, into: str, *, category: str = "general", source: str | None = None
) -> list[dict[str, Any]]:
    """Import conversations of a file or every shard of a folder; returns each file's counts, see `import_records`.

    `category` is for records that name none, `source` instead of the file's name.
    """

    def convert(record: dict[str, Any], name: str) -> dict[str, Any]:
        messages = read_conversation(record)
        return {
            "id": content_hash(messages)[:32],
            "messages": messages,
            "source": str(record.get("source") or source or name),
            "category": str(record.get("category") or category),
            "source_id": None if record.get("id") is None else str(record["id"]),
        }

    return import_records(uri, into, convert, kind="conversation", group="category")


def import_preferences(
    uri: str, into: str, *, domain: str = "general", source: str | None = None
) -> list[dict[str, Any]]:
    """Import judgements of answers (`preferences/records.py`) likewise; `domain` is for records that name none."""

    def convert(record: dict[str, Any], name: str) -> dict[str, Any]:
        return read_preference(record, domain=domain, source=source or name)

    return import_records(uri, into, convert, kind="judgement of two answers or more", group="domain")


def import_records(uri: str, into: str, convert: Convert, *, kind: str, group: str) -> list[dict[str, Any]]:
    """Import a file or every shard of a folder; returns each file's counts, also by the field that `group` names.

    `convert` makes a record with an `id` of one of theirs and their file's name, or raises Unusable. Raises DataError
    when there is no file, or one gives no record (no `kind`) at all.
    """
    store, keys = _files(uri)
    reports = []
    for key in keys:
        name = stem(key)[0]
        records, quarantine, counts = [], [], Counter[str]()
        seen: set[str] = set()
        for row in _converted(read_shard(store, key), convert, name):
            counts["read"] += 1
            if "reason" in row:
                quarantine.append(row)
                counts[row["reason"]] += 1
            elif row["id"] in seen:
                counts["repeated"] += 1
            else:
                seen.add(row["id"])
                records.append(row)
        report: dict[str, Any] = {
            "schema_version": 1,
            "file": key,
            "read": counts["read"],
            "imported": len(records),
            "repeated": counts["repeated"],
            "quarantined": len(quarantine),
            "reasons": dict(sorted(Counter(row["reason"] for row in quarantine).items())),
            PLURAL[group]: dict(sorted(Counter(row[group] for row in records).items())),
        }
        if report["read"] != report["imported"] + report["repeated"] + report["quarantined"]:
            raise ConservationError(f"{uri}: {key}: rows were lost on import: {report}")
        if not records:
            raise DataError(f"{uri}: {key}: of {report['read']} rows none is a {kind}: {report['reasons']}")
        _write(into, f"{name}.jsonl.zst", records)
        _write(into, f"{ASIDE}/{name}.quarantine.jsonl.zst", quarantine)
        write_json(join(into, ASIDE, f"{name}.json"), report)
        reports.append(report)
    return reports


def _files(uri: str) -> tuple[Any, list[str]]:
    if is_shard(uri.rsplit("/", 1)[-1]):
        folder, _, name = uri.rpartition("/")
        store = open_store(folder or ".")
        keys = [name] if store.exists(name) else []
    else:
        store = open_store(uri)
        keys = [entry.key for entry in store.list() if is_shard(entry.key)]
    if not keys:
        raise DataError(f"{uri}: no shard of records here; expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    return store, keys


def _converted(items: Iterator[Item], convert: Convert, name: str) -> Iterator[dict[str, Any]]:
    for item in items:
        if not isinstance(item, Row):
            row = getattr(item, "index", None)
            yield {"row": row, "offset": item.offset, "reason": item.reason, "detail": item.detail, "record": None}
            continue
        try:
            yield convert(item.record, name)
        except Unusable as error:
            place = {"row": item.index, "offset": item.offset}
            yield {**place, "reason": error.reason, "detail": error.detail, "record": repr(item.record)}


def _write(into: str, key: str, records: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / key.rsplit("/", 1)[-1]
        write_shard(path, records)
        open_store(into).upload(path, key)
