"""Paragraphs and sentences across the documents of a run and of earlier snapshots: which of them lose.

Paragraphs go through the same steps as documents, with documents' order first and then their position. Sentences are
matched word for word: near-matching them does more harm than good. Both come from the passages sidecar, so that no text
is read but that of candidates for near paragraphs. Only prose that is kept takes part.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tasks.curation.dedup.index import PARAGRAPHS, SENTENCES
from tasks.curation.dedup.members import (
    document_keys,
    document_units,
    earlier_units,
    finished_units,
    index_rows,
    passing,
    with_column,
    write_present,
    write_units,
)
from tasks.curation.dedup.pieces import Chunk, hash_ranges, read_piece, read_status, write_piece
from tasks.curation.dedup.plan import DOCUMENT, PARAGRAPH, REF_BITS, SENTENCE, EarlierPart, Run, load_run
from tasks.curation.dedup.shingles import bands_and_rows
from tasks.curation.dedup.units import band_hashes, packed
from tasks.curation.dedup.walk import DECIDED
from tasks.curation.passage_signals import VALUE
from tasks.curation.signal_files import read_passages

CODE_VERSION = 2  # raise when other passages may be cut
BYTES_A_SENTENCE = 256  # of a worker's memory for each that it counts at a time: a quarter of it, at 64 bytes
FOUND = pa.schema(
    [
        ("hash", pa.uint64()),
        ("day", pa.int32()),
        ("characters", pa.int64()),  # of the document
        ("doc_id", pa.binary(16)),
        ("part", pa.int32()),
        ("shard", pa.int32()),
        ("row", pa.int64()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("documents", pa.int32()),  # 1; of an earlier snapshot, in how many documents of that day it stands
    ]
)
REPEATED = pa.schema([*[FOUND.field(name) for name in ("shard", "row", "start", "end")], ("twin_id", pa.string())])


def write_paragraphs(part: int, work: str) -> dict[str, int]:
    """Pieces `paragraph/members/<part>` and `paragraph/bands/<part>`: the paragraphs that are long enough."""
    run = load_run(work)
    if (status := finished_units(run, PARAGRAPH, part)) is not None:
        return status
    earlier = run.earlier(part, PARAGRAPH)
    return write_units(run, PARAGRAPH, part, earlier_units(earlier) if earlier else _paragraphs(run, part))


def _paragraphs(run: Run, part: int) -> Iterator[pa.Table]:
    config = run.dedup(PARAGRAPH)
    for position, shard in enumerate(run.shards(part, PARAGRAPH)):
        documents = document_units(run, shard, position)
        for table in read_passages(run.plan.output, shard, run.config, "paragraphs"):
            units = documents.take(pa.array(np.searchsorted(documents["row"].to_numpy(), table["row"].to_numpy())))
            for name in ("start", "end", "identity"):
                units = with_column(units, name, table[name])
            values = np.frombuffer(b"".join(table["signature"].to_pylist()), dtype=VALUE)
            bands = band_hashes(values.reshape(-1, config.permutations), *bands_and_rows(config))
            yield with_column(units, "bands", packed(bands))


def kept_documents(run: Run, part: int) -> np.ndarray:
    """Keys of the part's documents that survived the document level, ascending."""
    table = passing(run, part)
    kept = table["passes"].to_numpy().copy()
    kept[_decided(run, DOCUMENT, part)["ref"].to_numpy() & ((1 << REF_BITS) - 1)] = False
    return document_keys(table.filter(pa.array(kept)))


def paragraphs_present(part: int, work: str) -> dict[str, int]:
    """Which of the paragraph level's candidates take part: those of kept documents."""
    run = load_run(work)
    own = run.earlier(part, PARAGRAPH) is None
    return write_present(part, work, PARAGRAPH, kept_documents(run, part) if own else None)


def _decided(run: Run, level: str, part: int) -> pa.Table:
    names = (f"{level}/decided/{other:05d}" for other in range(run.parts(level)))
    tables = (table for name in names for table in read_piece(run.store, name, part))
    return pa.concat_tables([DECIDED.empty_table(), *tables])


def cut_paragraphs(run: Run, part: int) -> pa.Table:
    """The part's paragraphs that lose, in order of document and place."""
    if not run.config.dedup.paragraphs:
        return DECIDED.empty_table()
    return _decided(run, PARAGRAPH, part).sort_by([(name, "ascending") for name in ("shard", "row", "start")])


def kept_passages(run: Run, part: int, level: str) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The part's passages of a level that are in kept documents and outside of all paragraphs that are cut, a batch at
    a time: the unit of each one's document, and the passages themselves."""
    kept, lost = kept_documents(run, part), _Covered(cut_paragraphs(run, part))
    for position, shard in enumerate(run.plan.parts[part]):
        documents = document_units(run, shard, position)
        keys, rows = document_keys(documents), documents["row"].to_numpy()
        for table in read_passages(run.plan.output, shard, run.config, level):
            places = np.searchsorted(rows, table["row"].to_numpy())
            chosen = np.isin(keys[places], kept) & ~lost.cover(keys[places], table["start"].to_numpy())
            yield documents.take(pa.array(places[chosen])), table.filter(pa.array(chosen))


class _Covered:
    """Paragraphs that are cut, given in order of document and place."""

    def __init__(self, lost: pa.Table) -> None:
        keys = document_keys(lost)
        self.documents, self.ends = np.unique(keys), lost["end"].to_numpy()
        self.owners = np.searchsorted(self.documents, keys)
        self.places = (self.owners << 32) + lost["start"].to_numpy()

    def cover(self, keys: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Whether a passage that starts there in the document of that key lies within one of them."""
        owners = np.searchsorted(self.documents, keys)
        before = np.searchsorted(self.places, (owners << 32) + starts, side="right") - 1
        found = (before >= 0) & (owners < len(self.documents))
        found[found] = self.documents[owners[found]] == keys[found]
        found[found] = (self.owners[before[found]] == owners[found]) & (self.ends[before[found]] > starts[found])
        return found


def find_sentences(part: int, work: str) -> dict[str, int]:
    """Piece `sentence/found/<part>`: every sentence of a kept document that is in no paragraph that is cut."""
    run = load_run(work)
    name, parts = f"{SENTENCE}/found/{part:05d}", run.parts(SENTENCE)
    if (status := read_status(run.store, name)) is not None:
        return status
    earlier = run.earlier(part, SENTENCE)

    def chunks() -> Iterator[Chunk]:
        for table in _earlier_sentences(earlier) if earlier else _sentences(run, part):
            target = table["hash"].to_numpy() % np.uint64(parts)
            for number in range(parts):
                yield number, table.filter(pa.array(target == number))

    return write_piece(run.store, name, FOUND, chunks(), {}, run.budget // 8)


def _sentences(run: Run, part: int) -> Iterator[pa.Table]:
    for units, table in kept_passages(run, part, "sentences"):
        own = {"part": np.full(table.num_rows, part), "documents": np.ones(table.num_rows, np.int32)}
        given = {name: table[name] for name in ("hash", "start", "end")} | {name: pa.array(own[name]) for name in own}
        columns = [given[name] if name in given else units[name] for name in FOUND.names]
        yield pa.table(columns, FOUND.names).cast(FOUND)


def _earlier_sentences(earlier: EarlierPart) -> Iterator[pa.Table]:
    for rows in index_rows(earlier):
        nowhere = pa.array(np.full(rows.num_rows, -1))
        columns = [rows[name] if name in rows.column_names else nowhere for name in FOUND.names]
        yield pa.table(columns, FOUND.names).cast(FOUND)


def find_repeats(part: int, work: str) -> dict[str, int]:
    """Piece `sentence/repeated/<part>`: occurrences of sentences to be cut, by the part that they lie in.

    An occurrence is cut when the sentence stands in enough documents of its own day and the days before, unless it is
    the first in the total order. What comes later changes nothing about it, so days may be curated one by one. Only
    sentences that occur often enough are sorted whole, a range of hashes at a time.
    """
    run = load_run(work)
    name, least = f"{SENTENCE}/repeated/{part:05d}", run.config.dedup.sentences
    assert least is not None
    if (status := read_status(run.store, name)) is not None:
        return status
    names = [f"{SENTENCE}/found/{other:05d}" for other in range(run.parts(SENTENCE))]

    def chunks() -> Iterator[Chunk]:
        for rows in hash_ranges(run.store, names, part, run.budget // BYTES_A_SENTENCE):
            yield from _repeats(_frequent(names, rows, least.documents), least.documents)

    return write_piece(run.store, name, REPEATED, chunks(), {}, run.budget // 8)


def _frequent(names: list[str], rows: Callable[..., Iterator[pa.Table]], least: int) -> pa.Table:
    """All occurrences of the sentences that occur at least so often, be it in fewer documents."""
    few = (table for name in names for table in rows(name, ["hash", "documents"]))
    seen = [(table["hash"].to_numpy(), table["documents"].to_numpy()) for table in few]
    hashes = np.concatenate([np.empty(0, np.uint64), *(found for found, _ in seen)])
    documents = np.concatenate([np.empty(0, np.int32), *(found for _, found in seen)])
    del seen
    values, where = np.unique(hashes, return_inverse=True)
    often = values[np.bincount(where, documents, len(values)) >= least]
    del hashes, documents, values, where
    frequent = [FOUND.empty_table()]
    for name in names if len(often) else ():
        for table in rows(name):
            found = table["hash"].to_numpy()
            places = np.minimum(np.searchsorted(often, found), len(often) - 1)
            frequent.append(table.filter(pa.array(often[places] == found)))
    return pa.concat_tables(frequent)


def _repeats(rows: pa.Table, least: int) -> Iterator[Chunk]:
    """Of each sentence's occurrences, those to be cut and the document where it stays, by part."""
    rows = rows.set_column(rows.schema.get_field_index("doc_id"), "doc_id", rows["doc_id"].cast(pa.binary()))
    order = ("hash", "day", "characters", "doc_id", "start")  # the total order, sentence by sentence
    rows = rows.sort_by([(name, "descending" if name == "characters" else "ascending") for name in order])
    hashes, days, parts = (rows[name].to_numpy() for name in ("hash", "day", "part"))
    own = np.flatnonzero(parts >= 0)
    sentence = _changed(hashes)
    day = sentence | _changed(days)
    number_of_day = np.cumsum(day) - 1
    # Documents of each day: those of an earlier snapshot are counted already, its own once each.
    new = rows["documents"].to_numpy().copy()
    new[own] = _changed(number_of_day[own]) | _changed(_numbers(rows["doc_id"])[own])
    counted = np.bincount(number_of_day, new)
    first = np.flatnonzero(sentence)[np.cumsum(sentence) - 1]  # row of each one's first occurrence
    until = np.cumsum(counted)
    before = until - counted  # documents of all days before
    documents = until[number_of_day] - before[number_of_day[first]]
    lost = np.flatnonzero((documents >= least) & (first != np.arange(len(hashes))) & (parts >= 0))
    twins = [doc_id.hex() for doc_id in rows["doc_id"].take(pa.array(first[lost])).to_pylist()]
    cut = rows.select(["shard", "row", "start", "end"]).take(pa.array(lost))
    cut = cut.append_column("twin_id", pa.array(twins, pa.string()))
    for owner in np.unique(parts[lost]).tolist():
        yield owner, cut.filter(pa.array(parts[lost] == owner))


def _changed(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before it; the first does."""
    return np.concatenate([np.ones(min(1, len(values)), bool), values[1:] != values[:-1]])


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Equal numbers for equal values."""
    return column.combine_chunks().dictionary_encode().indices.to_numpy()


def surviving_paragraphs(run: Run, part: int) -> Iterator[pa.Table]:
    """For the index: the paragraphs that stay, with their band hashes."""
    config = run.dedup(PARAGRAPH)
    for units, table in kept_passages(run, part, "paragraphs"):
        values = np.frombuffer(b"".join(table["signature"].to_pylist()), dtype=VALUE)
        bands = packed(band_hashes(values.reshape(-1, config.permutations), *bands_and_rows(config)))
        given = {"bands": bands, **{name: table[name] for name in ("start", "end", "identity")}}
        columns = [given[name] if name in given else units[name] for name in PARAGRAPHS.names]
        yield pa.table(columns, PARAGRAPHS.names).cast(PARAGRAPHS)


def known_sentences(run: Run, part: int) -> Iterator[pa.Table]:
    """For the index: in how many documents of each day a sentence stands, and the first of them in the total order."""
    columns = ["hash", "day", "characters", "doc_id"]
    empty = FOUND.empty_table().select(columns)
    for target in range(run.parts(SENTENCE)):
        found = read_piece(run.store, f"{SENTENCE}/found/{part:05d}", target, columns)
        rows = pa.concat_tables([empty, *found])
        rows = rows.set_column(3, "doc_id", rows["doc_id"].cast(pa.binary()))
        rows = rows.sort_by([(name, "descending" if name == "characters" else "ascending") for name in columns])
        hashes, days = rows["hash"].to_numpy(), rows["day"].to_numpy()
        new = np.ones(len(hashes), dtype=bool)
        new[1:] = (hashes[1:] != hashes[:-1]) | (days[1:] != days[:-1])
        another = new.copy()  # document
        another[1:] |= np.array([left != right for left, right in pairwise(rows["doc_id"].to_pylist())], dtype=bool)
        first = np.flatnonzero(new)
        documents = np.add.reduceat(another.astype(np.int32), first) if len(first) else np.empty(0, np.int32)
        yield rows.take(pa.array(first)).append_column("documents", pa.array(documents)).select(SENTENCES.names)
