"""The index of survivors, one entry a snapshot: what a later snapshot needs in order to deduplicate against it.

`<index>/<date>/entry.json` says what it is; the Parquet files that it names hold one row a survivor: its band hashes,
its place in the total order, and where its text lies. Text is read again only of those that share a band with a new
document. An entry records the hashes of the earlier entries it was decided against, so that a snapshot whose past
changed is known.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from tasks.corpus.artifact import content_hash
from tasks.corpus.manifest import DATE, Shard
from tasks.corpus.storage import Store, join, open_store, to_json
from tasks.curation.config import DedupConfig
from tasks.curation.dedup.pieces import read_groups
from tasks.curation.dedup.plan import BYTES_A_DOCUMENT, DOCUMENT, PARAGRAPH, SENTENCE, EarlierPart
from tasks.curation.dedup.shingles import SCHEME, bands_and_rows
from tasks.curation.dedup.takedown import taken_down
from tasks.errors import ConfigError, DataError, StorageError
from tasks.settings import StrictModel, explain

SCHEMA_VERSION: Literal[2] = 2
CODE_VERSION = 1  # raise when band hashes or survivors may change
NAME = "entry.json"
GROUP_ROWS = 100_000
DOCUMENTS = pa.schema(
    [
        ("day", pa.int32()),
        ("characters", pa.int64()),
        ("doc_id", pa.binary(16)),
        ("shard", pa.int32()),  # position in the entry's shards
        ("row", pa.int64()),
        ("bands", pa.binary()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
PARAGRAPHS = pa.schema(
    [
        *[field for field in DOCUMENTS if field.name != "bands"],
        ("start", pa.int64()),  # in code points of the normalised text
        ("end", pa.int64()),
        ("identity", pa.binary(16)),  # equal for paragraphs that differ in white space alone
        ("bands", pa.binary()),
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
SENTENCES = pa.schema(
    [
        ("hash", pa.uint64()),
        ("day", pa.int32()),
        ("documents", pa.int32()),  # of that day in which it stands
        ("doc_id", pa.binary(16)),  # of the first of them
    ],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)
SCHEMAS = {DOCUMENT: DOCUMENTS, PARAGRAPH: PARAGRAPHS, SENTENCE: SENTENCES}
COUNTED = {DOCUMENT: "doc_id", PARAGRAPH: "identity", SENTENCE: "hash"}  # the column that says what is in an entry


class IndexFile(StrictModel):
    """Row groups of a file below the index folder that belong to one entry."""

    key: str
    size: int
    groups: dict[int, int]  # number of the row group → rows


class Entry(StrictModel):
    """`entry.json`: one snapshot's survivors. `hash` stands for them, wherever the rows lie."""

    schema_version: Literal[2] = SCHEMA_VERSION
    snapshot: str
    key: str  # of the clustering that made it
    scheme: dict[str, Any]
    landing: str
    shards: list[Shard]
    files: dict[str, list[IndexFile]]  # level → where its rows lie
    documents: int
    earlier: dict[str, str]  # date → hash of the entries that this one was decided against
    takedowns: list[str]  # doc_ids that were known to be taken down
    hash: str


def scheme_of(config: DedupConfig) -> dict[str, Any]:
    """What two indexes must share for their rows to be compared."""
    bands, rows = bands_and_rows(config)
    names = ("threshold", "words", "characters", "permutations", "seed", "recall_weight")
    return {
        "hashing": SCHEME,
        "code_version": CODE_VERSION,
        "bands": bands,
        "rows": rows,
        **{name: getattr(config, name) for name in names},
        "paragraphs": config.paragraphs.model_dump() if config.paragraphs else None,
        "sentences": config.sentences.model_dump() if config.sentences else None,
    }


def read_entries(index: str, before: str = "9999-99-99") -> dict[str, Entry]:
    """Entries of snapshots before a date, by date. Raises DataError for a damaged one."""
    keys = [item.key.split("/") for item in open_store(index).list()]
    dates = sorted(key[0] for key in keys if key[1:] == [NAME] and DATE.fullmatch(key[0]) and key[0] < before)
    return {date: read_entry(index, date) for date in dates}


def read_entry(index: str, date: str) -> Entry:
    """The entry of a date. Raises DataError when it, or a file that it names, is missing or damaged."""
    store, place = open_store(index), join(index, date, NAME)
    try:
        entry = Entry.model_validate(orjson.loads(store.read(f"{date}/{NAME}")))
    except (ValidationError, orjson.JSONDecodeError) as error:
        what = explain(error, Entry, NAME) if isinstance(error, ValidationError) else str(error)
        raise DataError(f"{place}: no index entry: {what}; curate {date} again") from None
    for file in entry_files(entry):
        if store.size(file.key) != file.size:
            raise DataError(f"{join(index, file.key)}: missing or cut short; curate {date} again")
    return entry


def entry_files(entry: Entry) -> list[IndexFile]:
    """All files of an entry, of every level."""
    return [file for files in entry.files.values() for file in files]


def has_entry(index: str, date: str, key: str) -> bool:
    """Whether the clustering of that key has its entry in the index, whole."""
    try:
        return read_entry(index, date).key == key
    except (DataError, StorageError):
        return False


def check_scheme(index: str, entries: Iterable[Entry], config: DedupConfig) -> None:
    """Raise ConfigError that names what differs when an entry was made with another scheme or configuration."""
    mine = scheme_of(config)
    for entry in entries:
        other = {name: entry.scheme.get(name) for name in {*mine, *entry.scheme}}
        differing = [
            f"{name} {value} (now {mine.get(name)})" for name, value in sorted(other.items()) if value != mine.get(name)
        ]
        if differing:
            raise ConfigError(
                f"{join(index, entry.snapshot)}: this index was made with {', '.join(differing)}; curate "
                f"{entry.snapshot} again with this configuration, or name another index"
            )


def earlier_parts(index: str, entries: Iterable[Entry], budget: int, level: str) -> list[EarlierPart]:
    """The entries' row groups of a level, gathered into parts that fit a worker's budget."""
    most, parts = max(1, budget // BYTES_A_DOCUMENT), []
    for entry in entries:
        for file in entry.files.get(level, ()):
            waiting: list[int] = []
            rows = 0
            for group, count in sorted(file.groups.items()):
                if waiting and rows + count > most:
                    parts.append(_part(index, entry, file, waiting))
                    waiting, rows = [], 0
                waiting.append(group)
                rows += count
            if waiting:
                parts.append(_part(index, entry, file, waiting))
    return parts


def _part(index: str, entry: Entry, file: IndexFile, groups: list[int]) -> EarlierPart:
    return EarlierPart(
        snapshot=entry.snapshot, landing=entry.landing, uri=join(index, file.key), groups=groups, shards=entry.shards
    )


def write_survivors(store: Store, key: str, level: str, tables: Iterable[pa.Table]) -> tuple[IndexFile, int]:
    """Write a level's survivors as one file, with a row group for each table; and a sum of them modulo 2^128.

    The sum stands for the set, however it is divided into files.
    """
    schema = SCHEMAS[level]
    groups: dict[int, int] = {}
    total = 0
    with tempfile.TemporaryDirectory(prefix="athanor-") as folder:
        path = Path(folder) / "survivors.parquet"
        options = {"compression": "zstd", "compression_level": 1}
        dictionary = ["doc_id"] if level == SENTENCE else False
        with pq.ParquetWriter(path, schema, use_dictionary=dictionary, **options) as writer:
            for table in tables:
                for begin in range(0, table.num_rows, GROUP_ROWS):
                    rows = table.slice(begin, GROUP_ROWS).cast(schema)
                    writer.write_table(rows, row_group_size=GROUP_ROWS)
                    groups[len(groups)] = rows.num_rows
                    values = rows[COUNTED[level]].to_pylist()
                    total += sum(item if isinstance(item, int) else int.from_bytes(item, "big") for item in values)
        size = path.stat().st_size
        store.upload(path, key)
    return IndexFile(key=key, size=size, groups=groups), total % 2**128


def write_entry(index: str, entry: Entry) -> None:
    """Write an entry, then delete files of its snapshot that nobody names any more."""
    store = open_store(index)
    store.write(f"{entry.snapshot}/{NAME}", to_json(entry.model_dump(mode="json")))
    named = {file.key for file in entry_files(entry)}
    for item in list(store.list(f"{entry.snapshot}/")):
        if item.key.endswith(".parquet") and item.key not in named:
            store.delete(item.key)


def entry_hash(snapshot: str, scheme: dict[str, Any], survivors: int, shards: list[Shard]) -> str:
    """Hash of who and what survived (`survivors` is the sum over all levels) and where their texts lie."""
    places = sorted([shard.id, shard.key] for shard in shards)
    return content_hash([snapshot, scheme, f"{survivors % 2**128:032x}", places])


def states(index: str) -> list[dict[str, Any]]:
    """Every snapshot: how many survivors, how large its entry is, and why it is stale if it is.

    A snapshot is stale when an earlier one was added, changed or is stale itself, or when a survivor was taken down:
    then its clusters have to be made again, from the stored signatures.
    """
    entries, gone = read_entries(index), set(taken_down(index))
    out: list[dict[str, Any]] = []
    stale: list[str] = []
    for date, entry in entries.items():
        known = {other: entries[other].hash for other in entries if other < date}
        changed = [other for other in sorted({*known, *entry.earlier}) if known.get(other) != entry.earlier.get(other)]
        because = [f"{other} was added or changed" for other in changed]
        because += [f"{other} is stale" for other in stale if other not in changed]
        because += [f"{doc_id} was taken down" for doc_id in _hit(index, entry, gone - set(entry.takedowns))]
        if because:
            stale.append(date)
        sizes = {
            level: sum(file.size * sum(file.groups.values()) // max(_rows(entries, file.key), 1) for file in files)
            for level, files in entry.files.items()
        }
        size = sum(sizes.values())
        out.append({"snapshot": date, "documents": entry.documents, "bytes": size, "levels": sizes, "stale": because})
    return out


def _rows(entries: dict[str, Entry], key: str) -> int:
    """Rows of a file over all entries that have part in it."""
    files = (file for entry in entries.values() for file in entry_files(entry))
    return sum(sum(file.groups.values()) for file in files if file.key == key)


def _hit(index: str, entry: Entry, gone: set[str]) -> list[str]:
    if not gone:
        return []
    found = set()
    for table in _tables(index, entry, DOCUMENT):
        found |= {doc_id.hex() for doc_id in table["doc_id"].to_pylist()} & gone
    return sorted(found)


def _tables(index: str, entry: Entry, level: str) -> Iterable[pa.Table]:
    store = open_store(index)
    for file in entry.files.get(level, ()):
        with store.open(file.key) as stream:
            yield from read_groups(stream, sorted(file.groups))


def compact(index: str) -> dict[str, int]:
    """Bring all entries' rows into one file a level. No hash changes; nothing becomes stale.

    Entries are rewritten one by one; until then they name their old files, which are deleted last.
    """
    store, entries = open_store(index), read_entries(index)
    files: dict[str, dict[str, list[IndexFile]]] = {date: {} for date in entries}
    for level in SCHEMAS:
        for date, own in _compacted(store, index, entries, level).items():
            files[date][level] = own
    before = {file.key for entry in entries.values() for file in entry_files(entry)}
    after = {file.key for levels in files.values() for own in levels.values() for file in own}
    for date, entry in entries.items():
        store.write(f"{date}/{NAME}", to_json(entry.model_copy(update={"files": files[date]}).model_dump(mode="json")))
    for item in before - after:
        store.delete(item)
    return {"snapshots": len(entries), "files_before": len(before), "files": len(after)}


def _compacted(store: Store, index: str, entries: dict[str, Entry], level: str) -> dict[str, list[IndexFile]]:
    """Date → the files that hold its rows of a level now: one for all dates, written unless there was but one."""
    old = {file.key for entry in entries.values() for file in entry.files.get(level, ())}
    if len(old) <= 1:
        return {date: entry.files[level] for date, entry in entries.items() if level in entry.files}
    owners: list[str] = []

    def tables() -> Iterable[pa.Table]:
        for date, entry in entries.items():
            for table in _tables(index, entry, level):
                owners.extend([date] * -(-table.num_rows // GROUP_ROWS))
                yield table

    hashes = [entry.hash for entry in entries.values()]
    key = f"compacted/{content_hash([level, hashes, sorted(old)])[:32]}.parquet"
    file, _ = write_survivors(store, key, level, tables())
    found: dict[str, list[IndexFile]] = {}
    for date in entries:
        groups = {number: rows for number, rows in file.groups.items() if owners[number] == date}
        found[date] = [file.model_copy(update={"groups": groups})] if groups else []
    return found
