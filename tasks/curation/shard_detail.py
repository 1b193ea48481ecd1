"""One shard as a person looks at it: what failed, which rows are to be mended, what each says. All text is masked."""

from typing import Any

from tasks.corpus.document import Document, parse_record
from tasks.corpus.manifest import Manifest, Shard
from tasks.corpus.parquet import read_table
from tasks.corpus.privacy import excerpt
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.curation.config import CurationConfig
from tasks.curation.failures import Failure
from tasks.curation.verdict_files import REMEDY_MARK
from tasks.errors import DataError

COLUMNS = ("row", "byte_offset", "doc_id", "source_id", "source", "verdict", "reasons", "twin_id", "language", "kind")
EXCERPT, DETAIL = 1200, 300  # characters shown of a text, and of a message that may quote one


def shown_failure(failure: Failure) -> dict[str, Any]:
    return {**failure.model_dump(include={"shard", "group", "step", "kind", "remedy", "at"}), **_said(failure.message)}


def _said(message: str) -> dict[str, str]:
    return {"message": excerpt(message, 2 * DETAIL, numbers=False)}


def read_rows(
    output: str, shard: Shard, *, verdict: str = "", rule: str = "", offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Verdicts of a shard's rows, those with that verdict and that failed rule: {"total", "rows"}."""
    store, name = open_store(output), f"verdicts/{shard.id}.parquet"
    if not store.exists(name):
        return {"total": 0, "rows": []}
    with store.open(name) as stream:
        rows = read_table(stream, COLUMNS).to_pylist()
    fitting = [
        row
        for row in rows
        if (not verdict or row["verdict"] == verdict)
        and (not rule or any(reason["rule"] == rule for reason in row["reasons"]))
    ]
    return {"total": len(fitting), "rows": [shown_verdict(row) for row in fitting[offset : offset + limit]]}


def shown_verdict(row: dict[str, Any]) -> dict[str, Any]:
    """A verdict as it may be shown: the owner's own words masked, the remedy apart from the fault."""
    shown = {name: row[name] for name in COLUMNS if name not in ("reasons", "source_id", "source")}
    shown["source"] = excerpt(row["source"] or "", 100)
    shown["source_id"] = excerpt(row["source_id"], 100) if row["source_id"] else None
    shown["reasons"] = []
    for reason in row["reasons"]:
        detail, _, remedy = (reason["detail"] or "").partition(REMEDY_MARK)
        shown["reasons"].append({**reason, "detail": excerpt(detail, DETAIL, numbers=False), "remedy": remedy})
    return shown


def read_text(manifest: Manifest, shard: Shard, row: int) -> dict[str, Any]:
    """The head of a row's text: {"text" or None where it is no document, "characters"}. DataError without that row."""
    config = CurationConfig.model_validate(manifest.curation)
    for item in read_shard(open_store(manifest.landing), shard.key, config.max_record_bytes):
        if getattr(item, "index", None) != row:
            continue
        document = parse_record(item.record, shard.source) if isinstance(item, Row) else None
        if isinstance(document, Document):
            return {"text": excerpt(document.text, EXCERPT), "characters": len(document.text)}
        text = item.record.get("text") if isinstance(item, Row) else None
        return {"text": excerpt(text, EXCERPT) if isinstance(text, str) else None, "characters": len(text or "")}
    raise DataError(f"{shard.key}: no row {row}")
