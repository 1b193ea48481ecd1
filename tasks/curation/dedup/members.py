"""Who takes part at document level: documents that pass every rule, and survivors of earlier snapshots."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tasks.corpus.manifest import Shard
from tasks.corpus.storage import open_store
from tasks.curation.dedup.index import SURVIVORS
from tasks.curation.dedup.links import BANDS, band_chunks
from tasks.curation.dedup.pieces import Chunk, read_groups, read_status, write_piece
from tasks.curation.dedup.plan import DOCUMENT, Run, day_of, load_run
from tasks.curation.dedup.shingles import bands_and_rows
from tasks.curation.dedup.units import UNITS, band_hashes, identities, packed, unpacked
from tasks.curation.rules import failed_rules
from tasks.curation.signal_files import read_signals


def write_members(part: int, work: str) -> dict[str, int]:
    """Pieces `document/members/<part>` and `document/bands/<part>`."""
    run = load_run(work)
    if (status := finished_units(run, DOCUMENT, part)) is not None:
        return status
    tables = _survivors(run, part) if part >= len(run.plan.parts) else _documents(run, part)
    return write_units(run, DOCUMENT, part, tables)


def finished_units(run: Run, level: str, part: int) -> dict[str, int] | None:
    """Status of a part's band piece; None when it or the member piece is not finished."""
    pieces = [read_status(run.store, f"{level}/{step}/{part:05d}") for step in ("members", "bands")]
    return pieces[1] if all(pieces) else None


def write_units(run: Run, level: str, part: int, tables: Iterator[pa.Table]) -> dict[str, int]:
    """The member piece of a part, whose row numbers are the refs, and then its band piece."""
    bands, _ = bands_and_rows(run.dedup(level))
    hashes = [np.empty((0, bands), np.uint64)]

    def members() -> Iterator[Chunk]:
        for table in tables:
            hashes.append(unpacked(table["bands"], bands))
            yield 0, table

    facts: dict[str, int] = {}
    status = write_piece(run.store, f"{level}/members/{part:05d}", UNITS, members(), facts, run.budget // 8)
    found = np.concatenate(hashes)
    chunks = band_chunks(found, part, run.parts(level), part >= len(run.plan.parts))
    facts = {"units": len(found), "members_size": status["size"]}
    return write_piece(run.store, f"{level}/bands/{part:05d}", BANDS, chunks, facts, run.budget // 8)


def _documents(run: Run, part: int) -> Iterator[pa.Table]:
    for position, shard in enumerate(run.shards(part)):
        table = passing(run, shard)
        yield pa.table(
            {
                "day": pa.repeat(pa.scalar(day_of(shard, run.plan.snapshot), pa.int32()), table.num_rows),
                "characters": table["characters"].cast(pa.int64()),
                "doc_id": identities(table["doc_id"]),
                "source": table["source"],
                "source_id": table["source_id"].fill_null(""),
                "checksum": pa.repeat(shard.checksum, table.num_rows),
                "row": table["row"],
                "occurrence": pa.repeat(pa.scalar(shard.occurrence, pa.int32()), table.num_rows),
                "start": pa.repeat(pa.scalar(0, pa.int64()), table.num_rows),
                "end": table["characters"].cast(pa.int64()),
                "shard": pa.repeat(pa.scalar(position, pa.int32()), table.num_rows),
                "identity": identities(table["doc_id"]),
                "settled": pa.repeat(False, table.num_rows),
                "bands": _bands(table["signature"], run),
            },
            schema=UNITS,
        )


def passing(run: Run, shard: Shard) -> pa.Table:
    """Signals of a shard's documents that pass every rule and were not taken down."""
    table = read_signals(run.plan.output, shard, run.config)
    reasons, gone = failed_rules(table, run.config), set(run.plan.takedowns)
    wanted = [
        number
        for number, (fault, failed, doc_id) in enumerate(
            zip(table["fault"].to_pylist(), reasons, table["doc_id"].to_pylist(), strict=True)
        )
        if not fault and not failed and doc_id not in gone
    ]
    return table.take(pa.array(wanted, pa.int64()))


def _bands(signatures: pa.ChunkedArray, run: Run) -> pa.Array:
    config = run.dedup(DOCUMENT)
    values = np.frombuffer(b"".join(signatures.to_pylist()), dtype=np.uint32)
    return packed(band_hashes(values.reshape(-1, config.permutations), *bands_and_rows(config)))


def _survivors(run: Run, part: int) -> Iterator[pa.Table]:
    """Survivors of an earlier snapshot, from its index alone."""
    earlier = run.plan.earlier[part - len(run.plan.parts)]
    shards, gone = run.shards(part), {bytes.fromhex(item) for item in run.plan.takedowns}
    folder, _, name = earlier.uri.rpartition("/")
    with open_store(folder).open(name) as stream:
        for rows in read_groups(stream, earlier.groups):
            keep = [doc_id not in gone for doc_id in rows["doc_id"].to_pylist()]
            table = rows.filter(pa.array(keep, pa.bool_())).select(SURVIVORS.names)
            checksums = [shards[number].checksum for number in table["shard"].to_pylist()]
            yield pa.table(
                {
                    "day": table["day"],
                    "characters": table["characters"],
                    "doc_id": table["doc_id"],
                    "source": pa.repeat("", table.num_rows),
                    "source_id": pa.repeat("", table.num_rows),
                    "checksum": pa.array(checksums, pa.string()),
                    "row": table["row"],
                    "occurrence": pa.repeat(pa.scalar(0, pa.int32()), table.num_rows),
                    "start": pa.repeat(pa.scalar(0, pa.int64()), table.num_rows),
                    "end": table["characters"],
                    "shard": table["shard"],
                    "identity": table["doc_id"],
                    "settled": pa.repeat(True, table.num_rows),
                    "bands": table["bands"],
                },
                schema=UNITS,
            )
