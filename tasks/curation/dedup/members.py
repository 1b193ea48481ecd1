"""Who is compared at document level, and who of them takes part: documents that pass every rule.

Links are made between all documents that rules could let pass, whatever their thresholds are now, and survivors of
earlier snapshots; so other thresholds need neither new links nor the text of other candidates.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tasks.corpus.manifest import Shard
from tasks.corpus.storage import open_store
from tasks.curation.dedup.links import BANDS, band_chunks
from tasks.curation.dedup.pieces import Chunk, read_groups, read_piece, read_status, read_whole, write_piece
from tasks.curation.dedup.plan import DOCUMENT, REF_BITS, EarlierPart, Run, day_of, load_run
from tasks.curation.dedup.shingles import bands_and_rows
from tasks.curation.dedup.units import UNITS, band_hashes, identities, packed, unpacked
from tasks.curation.rules import failed_rules
from tasks.curation.signal_files import RULED, signal_batches

PASSING = pa.schema([("shard", pa.int32()), ("row", pa.int64()), ("passes", pa.bool_())])
PRESENT = pa.schema([("present", pa.bool_())])
COLUMNS = ["row", "doc_id", "source_id", "source", "fault", "language", "kind", "characters"]


def write_members(part: int, work: str) -> dict[str, int]:
    """Pieces `document/members/<part>` and `document/bands/<part>`."""
    run = load_run(work)
    if (status := finished_units(run, DOCUMENT, part)) is not None:
        return status
    earlier = run.earlier(part, DOCUMENT)
    return write_units(run, DOCUMENT, part, earlier_units(earlier) if earlier else _documents(run, part))


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
    config = run.dedup(DOCUMENT)
    for position, shard in enumerate(run.shards(part, DOCUMENT)):
        for signals in _compared(run, shard, [*COLUMNS, "signature"]):
            values = np.frombuffer(b"".join(signals["signature"].to_pylist()), dtype=np.uint32)
            bands = band_hashes(values.reshape(-1, config.permutations), *bands_and_rows(config))
            yield with_column(_units(run, shard, position, signals), "bands", packed(bands))


def _compared(run: Run, shard: Shard, columns: list[str]) -> Iterator[pa.Table]:
    """Signals of a shard's documents that could pass, those without a fault in a language or of a kind with rules, a
    batch at a time."""
    for table in signal_batches(run.plan.output, shard, run.config, columns):
        groups = zip(*(table[name].to_pylist() for name in ("fault", "language", "kind")), strict=True)
        wanted = [not fault and run.config.rule_set(language, kind) is not None for fault, language, kind in groups]
        yield table.filter(pa.array(wanted, pa.bool_()))


def document_units(run: Run, shard: Shard, position: int) -> pa.Table:
    """Units of the documents of a shard that could pass, without band hashes."""
    found = (_units(run, shard, position, signals) for signals in _compared(run, shard, COLUMNS))
    return pa.concat_tables([UNITS.empty_table(), *found]).combine_chunks()


def _units(run: Run, shard: Shard, position: int, signals: pa.Table) -> pa.Table:
    number = signals.num_rows
    columns = {
        "day": pa.repeat(pa.scalar(day_of(shard, run.plan.snapshot), pa.int32()), number),
        "characters": signals["characters"].cast(pa.int64()),
        "doc_id": identities(signals["doc_id"]),
        "source": signals["source"],
        "source_id": signals["source_id"].fill_null(""),
        "checksum": pa.repeat(shard.checksum, number),
        "row": signals["row"],
        "occurrence": pa.repeat(pa.scalar(shard.occurrence, pa.int32()), number),
        "start": pa.repeat(pa.scalar(0, pa.int64()), number),
        "end": signals["characters"].cast(pa.int64()),
        "shard": pa.repeat(pa.scalar(position, pa.int32()), number),
        "identity": identities(signals["doc_id"]),
        "settled": pa.repeat(False, number),
        "bands": pa.nulls(number, pa.binary()),
    }
    return pa.table(columns, schema=UNITS)


def with_column(units: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The units with another column of that name."""
    place = UNITS.get_field_index(name)
    return units.set_column(place, UNITS.field(place), column.cast(UNITS.field(place).type))


def earlier_units(earlier: EarlierPart) -> Iterator[pa.Table]:
    """Survivors of an earlier snapshot, documents or paragraphs, from its index alone."""
    checksums = pa.array([shard.checksum for shard in earlier.shards], pa.string())
    for rows in index_rows(earlier):
        number = rows.num_rows
        documents = "identity" not in rows.column_names
        given = {
            "source": pa.repeat("", number),
            "source_id": pa.repeat("", number),
            "checksum": checksums.take(rows["shard"].combine_chunks()),
            "occurrence": pa.repeat(pa.scalar(0, pa.int32()), number),
            "settled": pa.repeat(True, number),
        }
        if documents:
            given |= {"start": pa.repeat(pa.scalar(0, pa.int64()), number), "end": rows["characters"]}
            given |= {"identity": rows["doc_id"]}
        columns = [given[name] if name in given else rows[name] for name in UNITS.names]
        yield pa.table(columns, UNITS.names).cast(UNITS)


def index_rows(earlier: EarlierPart) -> Iterator[pa.Table]:
    """The rows of a part of the index, a batch at a time."""
    folder, _, name = earlier.uri.rpartition("/")
    with open_store(folder).open(name) as stream:
        yield from read_groups(stream, earlier.groups)


def write_passing(part: int, work: str) -> dict[str, int]:
    """Piece `document/passing/<part>`: of each member of the run's own, whether it passes every rule."""
    run = load_run(work)
    name, gone = f"{DOCUMENT}/passing/{part:05d}", set(run.plan.takedowns)
    if (status := read_status(run.store, name)) is not None:
        return status
    facts = {"documents": 0}

    def chunks() -> Iterator[Chunk]:
        for position, shard in enumerate(run.shards(part, DOCUMENT)):
            for table in _compared(run, shard, RULED):
                failed, doc_ids = failed_rules(table, run.config), table["doc_id"].to_pylist()
                passes = [not reasons and doc_id not in gone for reasons, doc_id in zip(failed, doc_ids, strict=True)]
                facts["documents"] += sum(passes)
                number = pa.repeat(pa.scalar(position, pa.int32()), table.num_rows)
                yield 0, pa.table([number, table["row"], pa.array(passes, pa.bool_())], schema=PASSING)

    return write_piece(run.store, name, PASSING, chunks(), facts, run.budget // 8)


def passing(run: Run, part: int) -> pa.Table:
    """The members of a part of the run's own: shard, row, and whether they pass."""
    return read_whole(run.store, f"{DOCUMENT}/passing/{part:05d}", 0, PASSING)


def document_keys(table: pa.Table) -> np.ndarray:
    """One number for each (shard, row) of a part."""
    return (table["shard"].to_numpy().astype(np.int64) << REF_BITS) + table["row"].to_numpy()


def write_present(part: int, work: str, level: str, taking: np.ndarray | None) -> dict[str, int]:
    """Piece `<level>/present/<part>`: whether each of the part's candidates takes part, in the candidates' order.

    `taking` are the document keys of those that do; None for an earlier snapshot, of which all do but those taken down.
    """
    run = load_run(work)
    name, gone = f"{level}/present/{part:05d}", {bytes.fromhex(item) for item in run.plan.takedowns}
    if (status := read_status(run.store, name)) is not None:
        return status

    def chunks() -> Iterator[Chunk]:
        for target in range(run.parts(level)):
            columns = ["shard", "row", "doc_id"]
            for table in read_piece(run.linked(level), f"{level}/candidates/{part:05d}", target, columns):
                if taking is None:
                    here = np.array([doc_id not in gone for doc_id in table["doc_id"].to_pylist()], dtype=bool)
                else:
                    here = np.isin(document_keys(table), taking)
                yield target, pa.table([pa.array(here)], schema=PRESENT)

    return write_piece(run.store, name, PRESENT, chunks(), {}, run.budget // 8)


def documents_present(part: int, work: str) -> dict[str, int]:
    """Who of the document level's candidates takes part."""
    run = load_run(work)
    if run.earlier(part, DOCUMENT):
        return write_present(part, work, DOCUMENT, None)
    table = passing(run, part)
    return write_present(part, work, DOCUMENT, document_keys(table.filter(table["passes"])))
