"""A document and its identity."""

import base64
import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

BOM = "\ufeff"
RESERVED = ("text", "id", "source", "url", "timestamp")
MOST_MARKS = 500  # combining marks in a row; living languages use fewer than 10
KINDS = ("prose", "code", "table", "dialogue")


@dataclass(frozen=True, slots=True)
class Document:
    """One text as it came, with what its owner said of it. `text` is raw: never normalised here."""

    doc_id: str
    text: str
    source: str
    source_id: str | None = None
    url: str | None = None
    timestamp: str | None = None
    kind: str | None = None
    extra: str = "{}"  # everything else its owner said, as JSON


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record is no document: a reason from the closed list of `REMEDIES`, and the detail."""

    reason: str
    detail: str


REMEDIES = {
    "not_json": "mend or remove the line; every line must be one JSON object",
    "not_an_object": 'write the line as an object, e.g. {"text": "…"}',
    "invalid_utf8": "convert the file to UTF-8 and replace it",
    "duplicate_key": "keep one value for each key; which one was meant cannot be told",
    "record_too_large": "split the record, or raise max_record_bytes in the curation configuration",
    "document_too_large": "split the document, or raise max_characters in the curation configuration",
    "missing_text": "give each record a 'text' key (rename the column that holds the text)",
    "text_not_a_string": "write 'text' as a string",
    "blank_text": "remove the record, or find out why its extraction came out empty",
    "nul_in_text": "remove the NUL characters; they are a sign of binary data or a wrong encoding",
    "lone_surrogate": "repair the text's escapes; half of a surrogate pair cannot be written as UTF-8",
    "combining_marks": "remove the run of combining marks; it takes hours to normalise and says nothing",
    "unsupported_value": "write the named value as a string or a number, and nest it less deeply",
    "truncated": "copy the file again; its end is missing",
    "corrupt": "copy the file again; its bytes are damaged",
    "unreadable_file": "check the file's permissions and the store's health",
    "unknown_format": "rename or convert it: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, .txt are read",
}


def doc_id(text: str) -> str:
    """128-bit BLAKE2b of the raw text's UTF-8 bytes, as 32 hex digits."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def parse_record(record: dict[str, Any], default_source: str) -> Document | Fault:
    """Turn one record into a document, or say why it is none."""
    if "text" not in record:
        return Fault("missing_text", f"found keys: {', '.join(sorted(map(str, record))) or 'none'}"[:200])
    text = record["text"]
    if not isinstance(text, str):
        return Fault("text_not_a_string", f"found {type(text).__name__}")
    if "\0" in text:
        return Fault("nul_in_text", f"first NUL at character {text.index(chr(0))}")
    if not text.replace(BOM, "").strip():
        return Fault("blank_text", f"{len(text)} characters, none visible")
    try:
        identity = doc_id(text)
    except UnicodeEncodeError as error:
        return Fault("lone_surrogate", f"at character {error.start}")
    # A run that long covers a multiple of its length: most texts need no search, which is slow, to have none.
    if any(map(unicodedata.combining, text[MOST_MARKS - 1 :: MOST_MARKS])) and (marks := _combining_run().search(text)):
        return Fault("combining_marks", f"more than {MOST_MARKS} in a row at character {marks.start()}")
    kind = record.get("kind") if record.get("kind") in KINDS else None
    extra = {key: value for key, value in record.items() if key not in RESERVED and not (key == "kind" and kind)}
    try:
        packed = _json(extra)
    except (RecursionError, TypeError, ValueError) as error:
        return Fault("unsupported_value", str(error)[:200])
    return Document(
        doc_id=identity,
        text=text,
        source=_string(record.get("source")) or default_source,
        source_id=_string(record.get("id")),
        url=_string(record.get("url")),
        timestamp=_string(record.get("timestamp")),
        kind=kind,
        extra=packed,
    )


def _json(extra: dict[str, Any]) -> str:
    """Canonical JSON. What orjson refuses (integers over 64 bits, halves of surrogate pairs) goes the slow way."""
    try:
        return orjson.dumps(extra, default=_plain, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return json.dumps(extra, default=_plain, sort_keys=True)


def _plain(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


@cache
def _combining_run() -> re.Pattern[str]:
    """Runs of combining marks: putting n of them in canonical order takes n² steps."""
    marks = [chr(point) for point in range(0x300, 0x20000) if unicodedata.combining(chr(point))]
    return re.compile(f"[{''.join(map(re.escape, marks))}]{{{MOST_MARKS},}}")


def _string(value: Any) -> str | None:
    """Identifiers and dates come as strings, numbers or date objects; all are kept as strings."""
    if value is None:
        return None
    return str(value).encode("utf-8", "replace").decode("utf-8")
