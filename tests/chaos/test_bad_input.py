"""A landing zone with every fault at once: all that can be read is, and nothing is lost without a word."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.document import REMEDIES
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import read_json
from tasks.curation import steps
from tests.chaos.faulty_input import FAULTS, Fault, write_landing
from tests.chaos.runs import curate, english, tables, tree

GOOD = ("good/a.jsonl.zst", "good/b.parquet")


def neighbours(landing: Path) -> Path:
    for number, name in enumerate(GOOD):
        write_shard(landing / name, [{"text": english(500 + 10 * number + n), "id": f"{n}"} for n in range(5)])
    return landing


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory, workers: None) -> Path:
    landing, output = tmp_path_factory.mktemp("landing"), tmp_path_factory.mktemp("output")
    write_landing(neighbours(landing), FAULTS)
    curate(landing, output)
    return output


@pytest.fixture(scope="module")
def report(output: Path) -> dict[str, Any]:
    return read_json(f"{output}/report.json")


@pytest.fixture(scope="module")
def rows(output: Path) -> list[dict[str, Any]]:
    return [row for table in tables(output, "verdicts").values() for row in table.to_pylist()]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_outcome(report: dict[str, Any], rows: list[dict[str, Any]], fault: Fault) -> None:
    (counts,) = [shard for shard in report["shards"] if shard["shard"] == fault.name]
    quarantined = sum(fault.quarantined.values())
    found = {name: counts[name] for name in ("read", "kept", "dropped", "quarantined", "unreadable")}
    assert found == {
        "read": fault.kept + fault.dropped + quarantined,
        "kept": fault.kept,
        "dropped": fault.dropped,
        "quarantined": quarantined,
        "unreadable": int(fault.tail is not None),
    }
    own = [row for row in rows if row["shard"] == fault.name]
    reasons = Counter(row["reasons"][0]["rule"] for row in own if row["verdict"] == "quarantined")
    assert reasons == fault.quarantined
    assert counts["bytes"]["read"] == sum(row["raw_bytes"] for row in own)

    problems = [problem for problem in report["problems"] if problem["shard"] == fault.name]
    told = {problem["what"].split(":")[0]: problem for problem in problems}
    assert set(told) == {*fault.quarantined, *([fault.tail[0]] if fault.tail else [])}
    assert all(problem["remedy"] == REMEDIES[reason] for reason, problem in told.items())
    for reason, number in fault.quarantined.items():
        assert told[reason]["rows"] == number
    if fault.tail:
        check_tail(told[fault.tail[0]], counts, fault)


def check_tail(told: dict[str, Any], counts: dict[str, Any], fault: Fault) -> None:
    reason, offset = fault.tail or ("", 0)
    size = len(fault.make) if isinstance(fault.make, bytes) else 100_000
    if offset == -2:
        assert 0 < told["offset"] < size
    else:
        assert told["offset"] == offset
    if reason == "unreadable_file" or not fault.make:
        assert counts["unreadable_bytes"] == 0
    elif fault.kept == 0:
        assert counts["unreadable_bytes"] == size
    else:
        assert 0 < counts["unreadable_bytes"] < size


def test_nothing_is_lost_in_documents_or_bytes(report: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    assert {shard["shard"] for shard in report["shards"]} == {*GOOD, *(fault.name for fault in FAULTS)}
    assert report["read"] == report["kept"] + report["dropped"] + report["quarantined"] == len(rows)
    sizes = report["bytes"]
    assert sizes["read"] == sizes["kept"] + sizes["dropped"] + sizes["quarantined"]
    assert report["kept"] == 10 + sum(fault.kept for fault in FAULTS)
    for name in ("read", "kept", "dropped", "quarantined", "unreadable", "unreadable_bytes"):
        assert report[name] == sum(shard[name] for shard in report["shards"])


def test_good_neighbours_have_the_same_bytes_as_alone(output: Path, tmp_path: Path) -> None:
    curate(neighbours(tmp_path / "in"), tmp_path / "out")
    for folder in ("curated", "verdicts"):
        alone = tables(tmp_path / "out", folder)
        assert len(alone) == len(GOOD) and sum(table.num_rows for table in alone.values()) == 10
        for name in alone:
            assert (output / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_kept_text_comes_out_of_bad_files_unharmed(output: Path) -> None:
    texts = {
        (row["shard"], row["row"]): row["text"]
        for table in tables(output, "curated").values()
        for row in table.to_pylist()
    }
    assert texts["rows/bad.jsonl", 7] == english(10_001)
    assert texts["packed/frames.jsonl.zst", 1] == english(10_131)
    assert texts["parquet/late.parquet", 1002] == english(10_142)
    assert texts["parquet/damaged.parquet", 8] == english(10_158)


def test_a_replaced_file_is_all_that_is_measured_again(output: Path, tmp_path: Path, workers: None) -> None:
    """The remedy of the report, followed: the result is that of a landing zone which never had the fault."""
    whole = [{"text": english(600 + n)} for n in range(4)]
    for place in ("mended", "undisturbed"):
        write_shard(neighbours(tmp_path / place) / "web" / "x.jsonl.gz", whole)
    packed = (tmp_path / "mended" / "web" / "x.jsonl.gz").read_bytes()
    (tmp_path / "mended" / "web" / "x.jsonl.gz").write_bytes(packed[:-40])
    assert curate(tmp_path / "mended", tmp_path / "out")["unreadable"] == 1
    (tmp_path / "mended" / "web" / "x.jsonl.gz").write_bytes(packed)
    plan = steps.inventory(str(tmp_path / "mended"), str(tmp_path / "out"), "2026-11-30")
    (group,) = plan["groups"]
    assert steps.compute_signals(str(tmp_path / "out"), group)["reused"] == len(GOOD)
    curate(tmp_path / "mended", tmp_path / "out")
    curate(tmp_path / "undisturbed", tmp_path / "plain")
    assert tree(tmp_path / "out") == tree(tmp_path / "plain")
