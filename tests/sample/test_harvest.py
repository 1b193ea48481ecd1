"""The harvest of a reduced sample from the machine that runs the tests: real files, real sizes."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from tasks.corpus.document import Document, Fault, parse_record
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import ConfigError, DataError
from tasks.sample import harvest
from tasks.sample.distributions import packages
from tasks.sample.harvest import harvest_corpus
from tasks.sample.sample import is_chinese

REPOSITORY = Path(__file__).resolve().parents[2]
FEW = ("--min-records", "150", "--min-pairs", "40")
PROGRAM = """
import typer
from tasks.sample.cli import register
app = typer.Typer()
app.callback()(lambda: None)
register(app)
app()
"""


def rows(into, result):
    store = open_store(str(into))
    items = [item for key in sorted(result["files"]) for item in read_shard(store, key)]
    assert all(isinstance(item, Row) for item in items)
    return [item.record for item in items if isinstance(item, Row)]


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_size_sources_and_formats(harvested):
    _, result = harvested
    assert 300 <= result["documents"] <= 1000
    assert 2_000_000 <= result["bytes"] <= 3_000_000
    assert {"python-source", "docstrings", "package-descriptions", "licences"} <= set(result["sources"])
    assert not result["reused"]
    suffixes = {"".join(Path(name).suffixes) for name in result["files"]}
    assert suffixes == {".jsonl.zst", ".jsonl.gz", ".parquet"}
    assert all(
        name.split("/")[0] == "2026-01-31" and name.split("/")[1] in result["sources"] for name in result["files"]
    )


def test_every_row_is_a_document_and_the_counts_hold(harvested):
    into, result = harvested
    parsed = [parse_record(record, "unknown") for record in rows(into, result)]
    assert not [fault for fault in parsed if isinstance(fault, Fault)]
    documents = [document for document in parsed if isinstance(document, Document)]
    assert len(documents) == result["documents"]
    assert result["bytes"] == sum([len(document.text.encode()) for document in documents])
    assert len({document.source_id for document in documents}) == len(documents)
    assert {document.kind for document in documents if document.source == "python-source"} == {"code"}
    assert Counter(document.source for document in documents) == {
        name: counts["documents"] for name, counts in result["sources"].items()
    }


def test_names_hold_no_place_of_this_machine(harvested):
    into, result = harvested
    places = [str(Path.home()), sys.prefix, sys.base_prefix, str(REPOSITORY), "file:", "site-packages", "\\"]
    for record in rows(into, result):
        for name in (record["id"], record.get("url") or ""):
            assert not name.startswith("/") and ".." not in name.split("/"), name
            assert not [place for place in places if place in name], name


def test_timestamps_are_dates_that_texts_state(harvested):
    into, result = harvested
    stamps = [record["timestamp"] for record in rows(into, result) if record.get("timestamp")]
    assert all(date(1970, 1, 1) <= date.fromisoformat(stamp) <= date.today() for stamp in stamps)


def test_chinese_is_there(harvested):
    into, result = harvested
    chinese = [record for record in rows(into, result) if is_chinese(record["text"])]
    assert result["chinese_documents"] == len(chinese)
    # Babel's names and Airflow's interface come with requirements.txt; system catalogues only where there are any.
    assert {"names-zh", "translations-zh"} <= {record["source"] for record in chinese}
    assert len(chinese) >= 20


def test_second_call_reuses(harvested, size):
    into, result = harvested
    before = {name: (into / name).stat().st_mtime_ns for name in result["files"]}
    again = harvest_corpus(str(into), **size)
    assert again["reused"]
    assert {key: again[key] for key in ("documents", "bytes", "files", "snapshot")} == {
        key: result[key] for key in ("documents", "bytes", "files", "snapshot")
    }
    assert {name: (into / name).stat().st_mtime_ns for name in result["files"]} == before
    default = harvest_corpus(str(into), min_documents=300, min_bytes=2_000_000)
    assert default["reused"] and default["snapshot"] == "2026-01-31"  # a later day's run takes the finished harvest


def test_damaged_shard_is_harvested_again(harvested, tmp_path, size):
    into, result = harvested
    copy = tmp_path / "landing"
    subprocess.run(["cp", "-r", str(into), str(copy)], check=True)
    victim = copy / min(result["files"])
    victim.write_bytes(victim.read_bytes()[:-10])
    assert not harvest_corpus(str(copy), **size)["reused"]
    assert contents(copy / "2026-01-31") == contents(into / "2026-01-31")


def test_interrupted_harvest_starts_again_and_gives_the_same_bytes(harvested, tmp_path, size):
    into, _ = harvested

    def interrupt(progress):
        if progress["source"] == "man":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harvest_corpus(str(tmp_path), **size, on_progress=interrupt)
    status = json.loads((tmp_path / "harvest.json").read_text())
    assert status["parts"]["corpus"]["state"] == "running"
    assert not (tmp_path / "2026-01-31").exists()
    (tmp_path / ".harvest-corpus" / "half.jsonl.zst").write_bytes(b"left by the interrupted call")
    assert not harvest_corpus(str(tmp_path), **size)["reused"]
    assert contents(tmp_path / "2026-01-31") == contents(into / "2026-01-31")
    assert not (tmp_path / ".harvest-corpus").exists()


def test_another_process_gives_the_same_bytes(harvested, instructed, tmp_path, size):
    into, _ = harvested
    options = [f"--{key.replace('_', '-')}={value}" for key, value in size.items()]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "harvest", "--into", str(tmp_path), *FEW, *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "2026-01-31") == contents(into / "2026-01-31")
    assert all(what in done.stdout for what in ("documents", "instruction records", "synthetic preference records"))
    assert contents(tmp_path / "instructions") == contents(into / "instructions")


def test_other_seed_gives_other_documents(harvested, tmp_path, size):
    other = harvest_corpus(str(tmp_path), **size, seed=1)
    first, second = ({record["id"] for record in rows(*pair)} for pair in (harvested, (tmp_path, other)))
    assert len(first & second) < 0.9 * len(first)


def test_other_peoples_data_is_never_replaced(tmp_path, size):
    mine = tmp_path / "2026-01-31" / "mine" / "part-000.jsonl"
    mine.parent.mkdir(parents=True)
    mine.write_text('{"text": "mine"}\n')
    with pytest.raises(DataError, match=r"mine/part-000\.jsonl: not written by the harvest"):
        harvest_corpus(str(tmp_path), **size)
    assert mine.read_text() == '{"text": "mine"}\n'


def test_a_machine_with_too_little_says_so(monkeypatch, tmp_path):
    only = {"package-descriptions": harvest.SOURCES["package-descriptions"]}
    monkeypatch.setattr(harvest, "SOURCES", only)
    with pytest.raises(DataError, match=r"this machine gives \d+ documents"):
        harvest_corpus(str(tmp_path), min_documents=len(packages()) + 1, min_bytes=1000)
    assert not list(tmp_path.glob("2*"))


def test_installed_distributions_alone_are_enough(bare_machine, tmp_path):
    result = harvest_corpus(str(tmp_path), min_documents=500, min_bytes=3_500_000)
    assert result["documents"] >= 500 and result["bytes"] >= 3_500_000
    assert not {"man", "debian-doc", "debian-descriptions", "docs-zh"} & set(result["sources"])
    assert result["chinese_documents"] >= 20


@pytest.mark.parametrize("arguments", [{"into": "s3://bucket/landing"}, {"snapshot": "31.01.2026"}])
def test_unusable_arguments(tmp_path, arguments):
    with pytest.raises(ConfigError):
        harvest_corpus(**{"into": str(tmp_path), **arguments})
