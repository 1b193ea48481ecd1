"""The board of a curation run: state and counts of every shard, for a page that looks again every few seconds.

A published run is read from its `report.json` alone. While a run is at work, folders are listed for the states, and
status files are read once each, so that many thousands of shards cost little at a time.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import orjson

from tasks.corpus.artifact import NAME as ARTIFACT
from tasks.corpus.artifact import content_hash
from tasks.corpus.lease import EXPIRES
from tasks.corpus.lease import NAME as LEASE
from tasks.corpus.manifest import NAME as MANIFEST
from tasks.corpus.manifest import Manifest, Shard
from tasks.corpus.storage import Store, join, open_store
from tasks.curation.config import CurationConfig
from tasks.curation.failures import Failure, read_failures
from tasks.curation.signal_files import read_status, signals_key
from tasks.errors import DataError, StorageError

STATES = ("failed", "problems", "waiting", "measured", "decided")  # the worst first; a letter each on the wire
COUNTS = ("read", "kept", "dropped", "quarantined", "unreadable")
SORTS = ("path", "state", "size", "read", "kept_share", "dropped", "quarantined")
MEASURES = ("raw_bytes", "documents", "seconds")
READ_AT_ONCE = 2000  # status files read at one look
Stamp = tuple[float, int] | None  # when a file was last changed, and its size


@dataclass
class Cell:
    """One shard on the board. Counts are documents; `kept_share` is of documents read, None before there are any."""

    shard: Shard
    state: str = "waiting"
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def kept_share(self) -> float | None:
        return self.counts["kept"] / self.counts["read"] if self.counts.get("read") else None


class Board:
    """What is known of one run's output; `look` brings it up to date. Not for two threads at once."""

    def __init__(self, output: str) -> None:
        self.output, self.store = output, open_store(output)
        self.cells: list[Cell] = []
        self.failures: list[Failure] = []
        self.report: dict[str, Any] | None = None
        self.version, self.snapshot, self.at_work = "", "", ""
        self.summary: dict[str, Any] = {}
        self._stamps: dict[str, Stamp] = {}
        self._signals: list[str] | None = None
        self._measured: dict[str, dict[str, Any] | None] = {}  # of the shards looked at so far, by id
        self._decided: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._next_look = 0.0

    def look(self) -> "Board":
        """Take in what has changed. A look that took long is not repeated at once. DataError without a manifest."""
        if time.monotonic() < self._next_look:
            return self
        begun = time.monotonic()
        stamps = {name: _stamp(self.store, name) for name in (MANIFEST, ARTIFACT, LEASE)}
        if stamps[MANIFEST] is None:
            raise DataError(f"{self.output}: no curation run here (no {MANIFEST})")
        if stamps[MANIFEST] != self._stamps.get(MANIFEST):
            self._take_manifest()
        self.at_work = self._holder() if stamps[LEASE] else ""
        # Times alone do not tell: a store that was copied has others.
        published = stamps[ARTIFACT] is not None and (not self.at_work or stamps[ARTIFACT] >= stamps[MANIFEST])
        if stamps != self._stamps or not published:
            self.failures = read_failures(self.output, self.manifest)
            if published:
                self._take_report()
            else:
                self._list()
            self._measure()
            self._mark_failed()
            self.summary = self._sum_up()
            self.version = content_hash([self.summary, "".join(cell.state[0] for cell in self.cells)])[:16]
        self._stamps = stamps
        self._next_look = time.monotonic() + max(1.0, 4 * (time.monotonic() - begun))
        return self

    def _sum_up(self) -> dict[str, Any]:
        """Totals, drops by rule (the most frequent first), rates of measuring, and shards by state."""
        totals: Counter[str] = Counter()
        rules: Counter[str] = Counter()
        states = Counter(cell.state for cell in self.cells)
        for cell in self.cells:
            for name, number in cell.counts.items():
                totals[name] += number
        reasons = [self.report["reasons"]] if self.report else [s["reasons"] for _, s in self._decided.values()]
        for part in reasons:
            rules.update({rule: count["documents"] for rule, count in part.items()})
        measured = [status for status in self._measured.values() if status]
        sums = {name: sum(status[name] for status in measured) for name in MEASURES}
        rate = 1 / sums["seconds"] if sums["seconds"] else 0.0
        return {
            "snapshot": self.snapshot,
            "published": self.report is not None,
            "at_work": self.at_work,
            "shards": len(self.cells),
            "bytes": sum(cell.shard.size for cell in self.cells),
            "states": {state: states[state] for state in STATES},
            "totals": {name: totals[name] for name in COUNTS},
            "rules": rules.most_common(),
            "rates": {
                "shards": len(measured),
                "megabytes": sums["raw_bytes"] * rate / 1e6,
                "documents": sums["documents"] * rate,
            },
            "left_out": (self.report or {}).get("left_out", []),
        }

    def select(self, state: str = "", text: str = "", sort: str = "path", descending: bool = False) -> list[Cell]:
        """The shards in that state whose path holds `text`, or whose group is it, sorted."""
        cells = [
            cell
            for cell in self.cells
            if (not state or cell.state == state) and (not text or text in cell.shard.key or text == cell.shard.group)
        ]
        if sort == "path":
            return cells[::-1] if descending else cells
        order = {state: number for number, state in enumerate(STATES)}
        keys = {
            "state": lambda cell: order[cell.state],
            "size": lambda cell: cell.shard.size,
            "kept_share": lambda cell: -1.0 if cell.kept_share is None else cell.kept_share,
        }
        return sorted(cells, key=keys.get(sort, lambda cell: cell.counts.get(sort, -1)), reverse=descending)

    def cell(self, shard_id: str) -> Cell:
        """Raises DataError when there is no such shard."""
        for cell in self.cells:
            if cell.shard.id == shard_id:
                return cell
        raise DataError(f"{self.output}: no shard {shard_id!r} in this snapshot")

    def _take_manifest(self) -> None:
        self.manifest = Manifest.model_validate(orjson.loads(self.store.read(MANIFEST)))
        self.config = CurationConfig.model_validate(self.manifest.curation)
        self.snapshot = self.manifest.snapshot
        self.cells = [Cell(shard) for shard in self.manifest.shards]
        self._signals = None

    def _holder(self) -> str:
        """What is being done here, in words; empty when whoever said so has been silent for long."""
        try:
            holders = orjson.loads(self.store.read(LEASE))["holders"]
        except StorageError:  # given back just now
            return ""
        return next((holder["what"] for holder in holders if time.time() - holder["beat"] < EXPIRES), "")

    def _take_report(self) -> None:
        report = self.report = orjson.loads(self.store.read("report.json"))
        counts = {item["shard"]: {name: item[name] for name in COUNTS} for item in report["shards"]}
        for cell in self.cells:
            cell.counts = counts.get(cell.shard.key, {})
            bad = cell.counts.get("quarantined") or cell.counts.get("unreadable")
            cell.state = "waiting" if not cell.counts else "problems" if bad else "decided"

    def _list(self) -> None:
        """States from what lies in the folders; counts from status files that are new."""
        self.report = None
        signals = {entry.key for entry in self.store.list("signals/")}
        decided = {entry.key: (entry.modified.timestamp(), entry.size) for entry in self.store.list("status/")}
        fresh = READ_AT_ONCE
        if self._signals is None:
            self._signals = [signals_key(shard, self.config) for shard in self.manifest.shards]
        for cell, key in zip(self.cells, self._signals, strict=True):
            name = f"status/{cell.shard.id}.json"
            measured = f"signals/{key}.json" in signals
            if measured and name in decided and self._decided.get(name, (None,))[0] != decided[name] and fresh:
                fresh -= 1
                self._decided[name] = (decided[name], orjson.loads(self.store.read(name)))
            status = self._decided[name][1] if measured and name in decided and name in self._decided else {}
            cell.counts = {count: status[count] for count in COUNTS} if status else {}
            bad = cell.counts.get("quarantined") or cell.counts.get("unreadable")
            cell.state = "waiting" if not measured else "measured" if not status else "problems" if bad else "decided"

    def _measure(self) -> None:
        """Times of measuring, of so many shards as tell enough."""
        for cell in self.cells:
            if len(self._measured) >= READ_AT_ONCE:
                return
            if cell.state not in ("waiting", "failed") and cell.shard.id not in self._measured:
                status = read_status(self.output, cell.shard, self.config)
                self._measured[cell.shard.id] = status and {name: status[name] for name in MEASURES}

    def _mark_failed(self) -> None:
        failed = {record.id for record in self.failures}
        for cell in self.cells:
            if cell.shard.id in failed:
                cell.state = "failed"


def _stamp(store: Store, name: str) -> Stamp:
    """When an object was last changed, and its size; None when it is not there."""
    here = store.local(name)
    if here is not None:
        try:
            status = here.stat()
        except FileNotFoundError:
            return None
        return (status.st_mtime, status.st_size)
    entry = next((entry for entry in store.list(name) if entry.key == name), None)
    return (entry.modified.timestamp(), entry.size) if entry else None


def read_snapshots(store: str) -> list[str]:
    """Dates of the snapshots that were curated, or are being, the newest first."""
    folder = open_store(join(store, "corpus"))
    here = folder.local()
    if here is not None:
        found = {path.parent.name for path in here.glob(f"*/{MANIFEST}")}
    else:
        found = {entry.key.split("/")[0] for entry in folder.list() if entry.key.endswith(f"/{MANIFEST}")}
    return sorted(found, reverse=True)
