"""The manifest of one curation run: which shards there are, and which group each belongs to."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

from pydantic import Field

from tasks.corpus.shards import is_shard
from tasks.corpus.storage import Entry, Store, join, open_store, read_json
from tasks.errors import DataError, UnreadableError
from tasks.settings import StrictModel

NAME = "manifest.json"
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")  # name of a snapshot's folder
RECORDS = ("instructions", "preferences", "domains")  # folders of a landing zone that hold records, not documents
SHARDS_PER_GROUP = 8  # fewer make a group's start-up cost more than its work


class Shard(StrictModel):
    """One file of the landing zone. Its identity is its content; `occurrence` tells equal files apart."""

    id: str
    key: str = Field(description="path below the landing folder")
    size: int = Field(description="bytes of the file")
    checksum: str = Field(description="128-bit BLAKE2b of the file, hex; empty when it could not be read")
    occurrence: int = 0
    group: str

    @property
    def source(self) -> str:
        """Source of records that name none: the first folder that is not a date."""
        folders = [folder for folder in self.key.split("/")[:-1] if not DATE.fullmatch(folder)]
        return folders[0] if folders else "unknown"

    def identified(self, seen: Counter[str]) -> "Shard":
        """With `id` and `occurrence` after the shards that were `seen` before it."""
        # A file that cannot be read has no content to be known by; its path has to do.
        identity = self.checksum[:16] or "x" + hashlib.blake2b(self.key.encode(), digest_size=8).hexdigest()
        occurrence = seen[identity]
        seen[identity] += 1
        name = f"{identity}-{occurrence}" if occurrence else identity
        return self.model_copy(update={"id": name, "occurrence": occurrence})


class Manifest(StrictModel):
    """`manifest.json`. Later steps read the configuration from here, and not from files that may change meanwhile."""

    schema_version: Literal[1] = 1
    snapshot: str
    landing: str
    curation: dict[str, Any]
    shards: list[Shard]

    @property
    def groups(self) -> list[str]:
        return sorted({shard.group for shard in self.shards})

    def group(self, name: str) -> list[Shard]:
        """The shards of a group. Raises DataError for a group that is not in the manifest."""
        found = [shard for shard in self.shards if shard.group == name]
        if not found:
            raise DataError(f"group {name!r} is not in the manifest; its groups are {', '.join(self.groups)}")
        return found


def take_inventory(landing: str, snapshot: str, curation: dict[str, Any], max_groups: int) -> Manifest:
    """List and checksum every shard below `landing`. Raises DataError when there is none."""
    store, entries = open_store(landing), list_shards(landing)
    if not entries:
        raise DataError(f"{landing}: {_nothing(store)}")
    with ThreadPoolExecutor(8) as pool:
        checksums = list(pool.map(partial(_checksum, store), entries))
    count = min(max_groups, -(-len(entries) // SHARDS_PER_GROUP))
    seen: Counter[str] = Counter()
    shards = []
    for number, (entry, checksum) in enumerate(zip(entries, checksums, strict=True)):
        group = _group_name(number * count // len(entries), count)
        shard = Shard(id="", key=entry.key, size=entry.size, checksum=checksum, group=group)
        shards.append(shard.identified(seen))
    return Manifest(snapshot=snapshot, landing=store.uri, curation=curation, shards=shards)


def list_shards(landing: str) -> list[Entry]:
    """Every shard of documents below a landing folder.

    A landing zone's own folders of records are left out. A snapshot's folder, which is named by its date, has none:
    there a folder of that name is a source's.
    """
    store = open_store(landing)
    whole = not DATE.fullmatch(store.uri.rstrip("/").rsplit("/", 1)[-1])
    apart = tuple(f"{name}/" for name in RECORDS) if whole else ()
    return [entry for entry in store.list() if is_shard(entry.key) and not entry.key.startswith(apart)]


def _nothing(store: Store) -> str:
    """Why there is no shard."""
    here = store.local()
    if here is not None and not here.exists():
        return "no such folder; name the one that holds the shards"
    if here is not None and not here.is_dir():
        return "a file; name the folder that holds it"
    return "no shards found; expected .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .txt files"


def _group_name(number: int, count: int) -> str:
    return f"group-{number:0{len(str(count - 1))}d}"


def _checksum(store: Store, entry: Entry) -> str:
    try:
        return checksum(store, entry.key)
    except (UnreadableError, OSError):  # a store that fails is no fault of the file: that goes on up
        return ""


def checksum(store: Store, key: str) -> str:
    """128-bit BLAKE2b of an object's bytes, hex. Raises StorageError when it cannot be read."""
    digest = hashlib.blake2b(digest_size=16)
    with store.open(key) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_manifest(output: str) -> Manifest:
    """The manifest of a run's output folder."""
    return Manifest.model_validate(read_json(join(output, NAME)))


def total_bytes(shards: Iterable[Shard]) -> int:
    return sum(shard.size for shard in shards)
