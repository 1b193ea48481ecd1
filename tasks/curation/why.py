"""Why was this document dropped? Its verdict, in words."""

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.corpus.parquet import read_table
from tasks.corpus.storage import open_store
from tasks.errors import DataError

MOST = 50  # verdicts that one search finds


@dataclass(frozen=True)
class Search:
    """Verdicts found, in how many of the files, and which file to go on at (None: all were looked at)."""

    rows: list[dict[str, Any]]
    looked_at: int
    files: int
    next: int | None


def find_verdicts(output: str, doc_id: str) -> list[dict[str, Any]]:
    """Every verdict whose `doc_id` begins with the given one, or whose `source_id` equals it. DataError if none."""
    found = search_verdicts(output, doc_id, seconds=float("inf")).rows
    if not found:
        raise DataError(f"{doc_id}: no such document in {output}; give a doc_id, its first digits, or the owner's id")
    return found


def search_verdicts(output: str, doc_id: str, *, after: int = 0, seconds: float = 5.0) -> Search:
    """Look for a document in the verdict files from number `after` on, for so many seconds or until 50 were found."""
    store, until = open_store(output), time.monotonic() + seconds
    names = [entry.key for entry in store.list("verdicts/")]
    found: list[dict[str, Any]] = []
    for number, name in enumerate(names[after:], after):
        if number > after and (time.monotonic() > until or (len(found) >= MOST and seconds != float("inf"))):
            return Search(found, number, len(names), number)
        with store.open(name) as stream:
            ids = read_table(stream, ["doc_id", "source_id"]).to_pydict()
        fits = [
            (identity or "").startswith(doc_id) or source_id == doc_id
            for identity, source_id in zip(ids["doc_id"], ids["source_id"], strict=True)
        ]
        if any(fits):
            with store.open(name) as stream:
                found += read_table(stream).filter(pa.array(fits)).to_pylist()
    return Search(found, len(names), len(names), None)


def explain(verdict: dict[str, Any]) -> str:
    """One verdict as a few lines of text."""
    where = f"row {verdict['row']} of {verdict['shard']}"
    if verdict["byte_offset"] is not None and verdict["byte_offset"] >= 0:
        where += f" (byte {verdict['byte_offset']} of the unpacked file)"
    name = verdict["doc_id"] or "a row that is no document"
    lines = [f"{name}: {verdict['verdict'].upper()}", f"  {where}"]
    given = f", its owner calls it {verdict['source_id']!r}" if verdict["source_id"] else ""
    lines.append(f"  source {verdict['source']}{given}; taken as {verdict['language']} {verdict['kind']}")
    if verdict["verdict"] == "kept":
        removed, added = verdict["removed_bytes"], verdict["added_bytes"]
        lines.append(
            f"  {verdict['raw_bytes']} bytes read, {removed} removed, {added} added, {verdict['written_bytes']} written"
        )
        lines.extend(f"  cut by {_span(span)}" for span in verdict["spans"])
    for reason in verdict["reasons"]:
        lines.append(f"  because {_reason(reason)}")
    if verdict["twin_id"]:
        lines.append(f"  the document kept in its place is {verdict['twin_id']}")
    return "\n".join(lines)


def _span(span: dict[str, Any]) -> str:
    stays = f", stays in {span['twin_id']}" if span["twin_id"] else ""
    return f"{span['rule']}: characters {span['start']}–{span['end']}{stays}"


def _reason(reason: dict[str, Any]) -> str:
    value, threshold = reason["value"], reason["threshold"]
    measured = "" if value is None else f" = {value:.4g}"
    limit = "" if threshold is None else f", threshold {threshold:g}"
    return f"{reason['rule']}{measured}{limit}: {reason['detail']}"
