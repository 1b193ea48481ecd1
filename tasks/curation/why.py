"""Why was this document dropped? Its verdict, in words."""

from typing import Any

from tasks.corpus.parquet import read_table
from tasks.corpus.storage import open_store
from tasks.errors import DataError


def find_verdicts(output: str, doc_id: str) -> list[dict[str, Any]]:
    """Every verdict whose `doc_id` begins with the given one, or whose `source_id` equals it. DataError if none."""
    store = open_store(output)
    found = []
    for entry in store.list("verdicts/"):
        with store.open(entry.key) as stream:
            for row in read_table(stream).to_pylist():
                if (row["doc_id"] or "").startswith(doc_id) or row["source_id"] == doc_id:
                    found.append(row)
    if not found:
        raise DataError(f"{doc_id}: no such document in {output}; give a doc_id, its first digits, or the owner's id")
    return found


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
