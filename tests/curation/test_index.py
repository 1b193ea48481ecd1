"""Day by day against an index: the same survivors as all days at once, takedown, backfill, compaction, refusal."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.curation.dedup import index as indexes
from tasks.curation.dedup.takedown import take_down
from tasks.errors import ConfigError, DataError
from tests.curation.test_levels import TAKE, lenient, rows, run
from tests.curation.test_steps import english

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


pytestmark = pytest.mark.usefixtures("in_process")


def near(seed: int, extra: int) -> str:
    return english(seed, 20) + " More is here." * extra


def passages(number: int, n: int) -> str:
    """A text with paragraphs of its own, one that stands in several texts, and a sentence that stands in many."""
    seed = 100 * number + n
    last = f"{english(9000 + seed, 3)} {TAKE}" if n % 2 else english(9500 + seed, 3)
    return "\n\n".join([english(7000 + seed, 4), english(8000 + n % 3, 4), last])


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days: each has texts of its own, copies and near copies of earlier ones, longer and shorter ones, and
    texts that share passages with each other and with those of earlier days."""
    folder = tmp_path_factory.mktemp("landing")
    for number, day in enumerate(DAYS):
        fresh = [{"text": near(100 * number + n, 0), "id": f"{day} fresh {n}"} for n in range(12)]
        # Two of the first day's hold the sentence, and one of each day after it.
        fresh += [{"text": passages(number, n), "id": f"{day} passages {n}"} for n in range(4 - (number > 0))]
        copies = [{"text": near(n, 0), "id": f"{day} copy {n}"} for n in range(number)]
        longer = [{"text": near(20 * number - n, 1 + n % 3), "id": f"{day} longer {n}"} for n in range(15)]
        write_shard(folder / day / "web" / "a.jsonl.zst", [*fresh, *copies])
        write_shard(folder / day / "web" / "b.jsonl", longer)
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return lenient(tmp_path_factory.mktemp("config"))


def curate(landing: Path, base: Path, config: str, days: tuple[str, ...] = DAYS) -> None:
    for day in days:
        run(landing / day, base / day, config, str(base / "index"), day)


@pytest.fixture(scope="module")
def by_day(landing: Path, config: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("by day")
    curate(landing, base, config)
    return base


def survivors(*outputs: Path) -> set[str]:
    return {name for output in outputs for name in rows(output, "curated")}


def test_day_by_day_gives_the_survivors_of_all_at_once(
    landing: Path, by_day: Path, config: str, tmp_path: Path
) -> None:
    """At every level: the same documents, with the same passages cut for the same reasons, and the same text left."""
    run(landing, tmp_path / "once", config, snapshot=DAYS[-1])
    found = survivors(*(by_day / day for day in DAYS))
    assert found == survivors(tmp_path / "once")
    read = sum(len(rows(by_day / day, "verdicts")) for day in DAYS)
    assert 36 < len(found) < read - 10
    texts = {name: row["text"] for day in DAYS for name, row in rows(by_day / day, "curated").items()}
    assert texts == {name: row["text"] for name, row in rows(tmp_path / "once", "curated").items()}
    spans = {name: row["spans"] for day in DAYS for name, row in rows(by_day / day, "verdicts").items()}
    assert spans == {name: row["spans"] for name, row in rows(tmp_path / "once", "verdicts").items()}
    assert {span["rule"] for row in spans.values() for span in row} == {"paragraph_exact", "sentence_repeated"}


def test_a_sentence_is_cut_once_enough_documents_of_its_day_and_before_hold_it(by_day: Path) -> None:
    """Two documents hold it on the first day, where they stay, though a third comes on the second day and is cut."""
    holding = [[name for name, row in rows(by_day / day, "curated").items() if TAKE in row["text"]] for day in DAYS]
    assert [sorted(names) for names in holding] == [[f"{DAYS[0]} passages 1", f"{DAYS[0]} passages 3"], [], []]
    spans = [span for day in DAYS for row in rows(by_day / day, "verdicts").values() for span in row["spans"]]
    twins = [span["twin_id"] for span in spans if span["rule"] == "sentence_repeated"]
    longest = max((rows(by_day / DAYS[0], "curated")[name] for name in holding[0]), key=lambda row: len(row["text"]))
    assert twins == [longest["doc_id"]] * 2


def test_a_passage_that_was_taken_down_with_its_document_comes_back(
    landing: Path, by_day: Path, config: str, tmp_path: Path
) -> None:
    base = copied(by_day, tmp_path)
    spans = rows(base / DAYS[1], "verdicts")[f"{DAYS[1]} passages 0"]["spans"]
    (span,) = [span for span in spans if span["rule"] == "paragraph_exact"]
    take_down(str(base / "index"), span["twin_id"], "asked for")
    curate(landing, base, config)
    after = rows(base / DAYS[1], "verdicts")[f"{DAYS[1]} passages 0"]["spans"]
    assert span["twin_id"] not in {item["twin_id"] for item in after}
    shared = english(8000, 4)
    holding = [name for day in DAYS for name, row in rows(base / day, "curated").items() if shared in row["text"]]
    assert len(holding) == 1
    assert not any(state["stale"] for state in indexes.states(str(base / "index")))


def test_earlier_text_is_read_again_only_where_it_is_a_candidate(by_day: Path) -> None:
    from tasks.corpus.storage import open_store
    from tasks.curation.dedup.duplicate_files import read_summary

    summary = read_summary(open_store(str(by_day / DAYS[1])))
    earlier = len(survivors(by_day / DAYS[0]))
    assert 0 < summary["earlier_text_read"]["documents"] < earlier
    assert summary["earlier_snapshots"] == [DAYS[0]]


def test_the_verdict_names_the_earlier_survivor(by_day: Path) -> None:
    lost = rows(by_day / DAYS[1], "verdicts")[f"{DAYS[1]} copy 0"]
    twin = {row["doc_id"]: row for row in rows(by_day / DAYS[0], "curated").values()}[lost["twin_id"]]
    where = f"survivor: row {twin['row']} of {twin['shard']} in snapshot {DAYS[0]}"
    assert lost["reasons"][0]["detail"] == where


def copied(by_day: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(by_day, tmp_path / "copy"))


def test_a_takedown_brings_the_twin_back(landing: Path, by_day: Path, config: str, tmp_path: Path) -> None:
    base = copied(by_day, tmp_path)
    index = str(base / "index")
    lost = rows(base / DAYS[1], "verdicts")[f"{DAYS[1]} longer 14"]
    assert lost["verdict"] == "dropped"
    twin = lost["twin_id"]
    assert take_down(index, twin, "asked for by its owner") and not take_down(index, twin, "again")
    stale = {state["snapshot"]: state["stale"] for state in indexes.states(index)}
    assert stale[DAYS[0]] == [f"{twin} was taken down"] and stale[DAYS[1]] == [f"{DAYS[0]} is stale"]
    curate(landing, base, config)
    (gone,) = [row for row in rows(base / DAYS[0], "verdicts").values() if row["doc_id"] == twin]
    assert (gone["verdict"], gone["reasons"][0]["rule"]) == ("dropped", "taken_down")
    assert gone["reasons"][0]["detail"] == "asked for by its owner"
    texts = [row["text"] for day in DAYS for row in rows(base / day, "curated").values()]
    assert any(near(6, 0) in text for text in texts)
    assert twin not in {row["doc_id"] for day in DAYS for row in rows(base / day, "curated").values()}
    assert not any(state["stale"] for state in indexes.states(index))
    with pytest.raises(DataError, match="32 hex digits"):
        take_down(index, twin[:10], "x")


def test_a_backfilled_day_marks_later_ones_stale(landing: Path, by_day: Path, config: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    curate(landing, base, config, DAYS[1:])
    curate(landing, base, config, DAYS[:1])
    stale = [bool(state["stale"]) for state in indexes.states(str(base / "index"))]
    assert stale == [False, True, True]
    curate(landing, base, config, DAYS[1:])
    assert not any(state["stale"] for state in indexes.states(str(base / "index")))
    for day in DAYS:
        assert survivors(base / day) == survivors(by_day / day)


def test_compaction_changes_no_outcome(landing: Path, by_day: Path, config: str, tmp_path: Path) -> None:
    base = copied(by_day, tmp_path)
    index = str(base / "index")
    before = indexes.states(index)
    assert indexes.compact(index)["files"] == 3  # one a level
    assert len(list((base / "index").rglob("*.parquet"))) == 3
    assert [(s["documents"], s["stale"]) for s in indexes.states(index)] == [(s["documents"], []) for s in before]
    shutil.rmtree(base / DAYS[2] / "duplicates")
    curate(landing, base, config, DAYS[2:])
    assert survivors(base / DAYS[2]) == survivors(by_day / DAYS[2])
    assert indexes.compact(index)["files"] == 3


def test_an_index_of_another_configuration_is_refused_by_name(landing: Path, by_day: Path, tmp_path: Path) -> None:
    base = copied(by_day, tmp_path)
    with pytest.raises(ConfigError, match=rf"index/{DAYS[0]}.*words 5 \(now 4\).*curate {DAYS[0]} again"):
        curate(landing, base, lenient(tmp_path, words=4), DAYS[1:2])


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_entry_is_named_and_mended(
    landing: Path, by_day: Path, config: str, tmp_path: Path, damage: str
) -> None:
    base = copied(by_day, tmp_path)
    victim = next((base / "index" / DAYS[0]).glob("*.parquet"))
    if damage == "gone":
        victim.unlink()
    else:
        os.truncate(victim, 100)
    shutil.rmtree(base / DAYS[1] / "duplicates")
    with pytest.raises(DataError, match=rf"{victim.name}: missing or cut short; curate {DAYS[0]} again"):
        steps.cluster_duplicates(str(base / DAYS[1]), index=str(base / "index"))
    curate(landing, base, config)
    assert not any(state["stale"] for state in indexes.states(str(base / "index")))


def test_size_of_the_index(by_day: Path) -> None:
    """At most 250 bytes a document, 180 a paragraph and 40 a sentence, whatever they hold."""
    states: list[dict[str, Any]] = indexes.states(str(by_day / "index"))
    for state in states:
        (entry,) = [e for e in indexes.read_entries(str(by_day / "index")).values() if e.snapshot == state["snapshot"]]
        for level, most in (("document", 250), ("paragraph", 180), ("sentence", 40)):
            tables = [pq.read_table(by_day / "index" / file.key) for file in entry.files[level]]
            count = sum(table.num_rows for table in tables)
            assert count == state["documents"] if level == "document" else count > 0
            assert sum(table.nbytes for table in tables) <= most * count


def test_commands(by_day: Path, tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from tasks.curation.dedup import index_cli

    base, app = copied(by_day, tmp_path), typer.Typer()
    index_cli.register(app)
    index = str(base / "index")
    doc_id = next(iter(rows(base / DAYS[0], "curated").values()))["doc_id"]
    taken = CliRunner().invoke(app, ["takedown", doc_id, "--index", index, "--reason", "owner"]).output
    first, *stale = taken.splitlines()
    assert first == f"{doc_id}: recorded; curate the stale snapshots again:"
    assert stale == [f"  {day}" for day in DAYS]
    shown = CliRunner().invoke(app, ["index", index, "--compact"]).output.splitlines()
    assert shown[0] == "3 snapshots, 9 files before, 3 now"
    assert [line.split()[0] for line in shown[1:]] == list(DAYS)
    assert f"STALE: {doc_id} was taken down" in shown[1] and f"STALE: {DAYS[0]} is stale" in shown[2]
