"""The steps together, on real Dask workers: counts add up, the same bytes come out, finished work is reused."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.corpus.artifact import read_artifact, verify_artifact
from tasks.corpus.manifest import read_manifest
from tasks.corpus.shards import write_shard
from tasks.curation import cluster, steps
from tasks.curation.cluster import dask_client
from tasks.curation.why import explain, find_verdicts
from tasks.errors import ConfigError, DataError, StorageError
from tasks.settings import CONTRACTS
from tests.chaos.runs import curate as run
from tests.chaos.runs import english

SHARDS = 4
GOLDEN = "8e5eadf21e22c130"  # of signals 5, verdicts 2, passages 2, all other code versions 1
CHINESE = (
    "今天我们讨论一个问题：数据的质量决定模型的质量。"
    "研究人员在2026年整理了许多文章，他们认为去除重复的内容是有用的。"
)


def corpus(folder: Path) -> Path:
    """Four shards in mixed formats: good text, duplicates across shards, junk, bad rows, another language."""
    long = english(0, 30)
    write_shard(folder / "web" / "a.jsonl.zst", [{"text": english(n), "id": f"a{n}"} for n in range(20)])
    write_shard(folder / "web" / "b.parquet", [{"text": english(n), "id": f"b{n}", "url": "u"} for n in range(15, 40)])
    rows = [
        {"text": long + " One more sentence is here.", "id": "longer", "tags": ["x"]},
        {"text": long, "id": "shorter"},
        {"text": "too short"},
        {"text": "Le chat est sur la table et le chien est dans le jardin avec les enfants. " * 5},
        {"text": "".join(f"{n}：{CHINESE}第{n * 7919}章讲的是第{n * 104729}种方法。\n" for n in range(3)), "id": "zh"},
        {"text": "def f(x):\n    return x\n\nclass A:\n    y = 1\n\nimport os\n" * 3, "id": "code"},
        {"text": ""},
        {"no": "text"},
        {"text": "a\0b"},
    ]
    (folder / "mixed").mkdir(parents=True)
    lines = [orjson.dumps(row) for row in rows]
    (folder / "mixed" / "c d#.jsonl").write_bytes(b"\n".join([*lines, b"not json", b'{"text": "\xff"}']))
    (folder / "mixed" / "broken.parquet").write_bytes(b"PAR1 but no more")
    (folder / "_SUCCESS").write_text("")
    return folder


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("landing"))


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[None]:
    with dask_client(2):
        yield


def tree(output: Path) -> str:
    """One hash over names and bytes of everything that is handed on."""
    digest = hashlib.sha256()
    files = [path for folder in ("curated", "verdicts") for path in (output / folder).glob("*")]
    for path in [*sorted(files), output / "report.json"]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def output(landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    run(landing, folder)
    return folder


def verdicts(output: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((output / "verdicts").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_counts_add_up(output: Path) -> None:
    report = orjson.loads((output / "report.json").read_bytes())
    assert report["read"] == 45 + 11 == report["kept"] + report["dropped"] + report["quarantined"]
    assert report["quarantined"] == 5
    assert report["bytes"]["read"] == sum(report["bytes"][name] for name in ("kept", "dropped", "quarantined"))
    assert (report["unreadable"], report["unreadable_bytes"]) == (1, 16)
    rows = verdicts(output)
    assert len(rows) == report["read"]
    assert sum(row["written_bytes"] for row in rows) == report["bytes"]["written"]
    texts = [row for path in (output / "curated").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(texts) == report["kept"]
    assert sum(len(row["text"].encode()) for row in texts) == report["bytes"]["written"]
    remedies = {problem["what"].split(":")[0]: problem["remedy"] for problem in report["problems"]}
    assert set(remedies) == {"blank_text", "missing_text", "nul_in_text", "not_json", "invalid_utf8", "corrupt"}
    assert all(remedies.values())


def test_every_verdict_is_explained(output: Path) -> None:
    by_id = {row["source_id"]: row for row in verdicts(output) if row["source_id"]}
    assert by_id["longer"]["verdict"] == "kept"
    assert by_id["shorter"]["verdict"] == "dropped"
    assert by_id["shorter"]["twin_id"] == by_id["longer"]["doc_id"]
    assert 0.8 <= by_id["shorter"]["similarity"] < 1
    assert by_id["shorter"]["reasons"][0]["threshold"] == 0.8
    assert by_id["zh"]["language"] == "zh"
    assert by_id["code"]["kind"] == "code"
    for row in verdicts(output):
        assert (row["verdict"] == "kept") == (not row["reasons"])
        assert row["source"] in ("web", "mixed")
    exact = [row for row in verdicts(output) if row["similarity"] == 1.0]
    assert len(exact) == 5  # rows 15–19 stand in both shards of `web`
    rules = {reason["rule"] for row in verdicts(output) for reason in row["reasons"]}
    assert {"min_characters", "gopher_words", "language_not_configured"} <= rules
    short = next(row for row in verdicts(output) if row["raw_bytes"] == len("too short"))
    assert len(short["reasons"]) > 1  # all failing rules, not the first


def test_why_in_words(output: Path) -> None:
    (found,) = find_verdicts(str(output), "shorter")
    text = explain(found)
    assert "DROPPED" in text and "duplicate_near = 0." in text and "threshold 0.8" in text and found["twin_id"] in text
    assert "c d#.jsonl" in text
    with pytest.raises(DataError, match="no such document"):
        find_verdicts(str(output), "ffff0000")


def test_same_bytes_in_another_place_with_other_groups(landing: Path, output: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(landing, moved)
    for number in range(8):
        write_shard(moved / "more" / f"{number}.jsonl", [{"text": english(900 + number)}])
    run(moved, tmp_path / "grouped", max_groups=1)
    run(moved, tmp_path / "many", max_groups=64)
    assert tree(tmp_path / "grouped") == tree(tmp_path / "many")
    run(landing, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(output)
    assert read_artifact(str(tmp_path / "again")).hash == read_artifact(str(output)).hash
    verify_artifact(str(output))


@pytest.mark.parametrize("workers", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_same_bytes_with_any_number_of_workers(landing: Path, output: Path, tmp_path: Path, workers: int) -> None:
    """`output` was made by two."""
    with _own_cluster(workers):
        run(landing, tmp_path)
    assert tree(tmp_path) == tree(output)


def test_finished_work_is_reused_and_a_lost_piece_is_made_again(landing: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = run(landing, out)
    before = tree(out)
    group = steps.read_manifest(str(out)).groups[0]
    assert steps.compute_signals(str(out), group)["reused"] == SHARDS
    victim = next(iter(sorted((out / "signals").glob("*.json"))))
    victim.unlink()
    assert steps.compute_signals(str(out), group)["reused"] == SHARDS - 1
    assert steps.cluster_duplicates(str(out))["reused"]
    assert steps.write_verdicts(str(out), group)["reused"] == SHARDS
    assert steps.publish(str(out)) == first
    assert tree(out) == before


def test_a_replaced_shard_leaves_nothing_behind(landing: Path, tmp_path: Path) -> None:
    moved, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(landing, moved)
    first = run(moved, out)
    write_shard(moved / "web" / "a.jsonl.zst", [{"text": english(500), "id": "new"}])
    second = run(moved, out)
    assert second["hash"] != first["hash"]
    assert second["read"] == first["read"] - 19
    assert len(list((out / "curated").glob("*.parquet"))) == SHARDS
    verify_artifact(str(out))


def test_other_thresholds_compute_no_signals_again(landing: Path, output: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(output, out)
    plan = steps.inventory(str(landing), str(out), "2026-11-30", curation=str(stricter(tmp_path)))
    assert steps.compute_signals(str(out), plan["groups"][0])["reused"] == SHARDS
    steps.cluster_duplicates(str(out))
    steps.write_verdicts(str(out), plan["groups"][0])
    assert steps.publish(str(out))["kept"] < 5


def test_a_shard_that_fails_names_itself_and_spares_the_others(landing: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps.inventory(str(landing), str(out), "2026-11-30")
    shard = steps.read_manifest(str(out)).shards[-1]
    (out / "signals").mkdir(parents=True)
    config = steps.CurationConfig.model_validate(steps.read_manifest(str(out)).curation)
    # A folder where the file must go: the store refuses this one write.
    (out / "signals" / f"{steps.signal_files.signals_key(shard, config)}.parquet").mkdir()
    with pytest.raises(StorageError, match=rf"1 of {SHARDS} shards of group-0 failed.*\n  {shard.key}: StorageError"):
        steps.compute_signals(str(out), "group-0")
    assert len(list((out / "signals").glob("*.json"))) == SHARDS - 1
    with pytest.raises(DataError, match="1 shards have no signals yet"):
        steps.cluster_duplicates(str(out))


def test_a_document_of_which_only_blanks_are_left_is_dropped(tmp_path: Path) -> None:
    text = " \n" + "Please read the cookie policy of this site, and have a good day for it. " * 6 + "\n \n"
    write_shard(tmp_path / "in" / "2026-01-01" / "web" / "a.jsonl", [{"text": text, "id": "blank"}])
    published = run(tmp_path / "in", tmp_path / "out")
    assert (published["read"], published["dropped"]) == (1, 1)
    (found,) = verdicts(tmp_path / "out")
    assert "nothing_left" in {reason["rule"] for reason in found["reasons"]}
    assert found["source"] == "web"  # and not the snapshot's date


def test_golden_content(output: Path) -> None:
    """Fails when what is written changes. Then raise the CODE_VERSION of the step that changed, and this hash."""
    rows = [row for path in sorted((output / "curated").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    content = orjson.dumps([verdicts(output), rows], option=orjson.OPT_SORT_KEYS)
    assert hashlib.sha256(content).hexdigest()[:16] == GOLDEN


def test_a_shard_that_is_gone_for_a_moment_is_not_remembered_as_empty(tmp_path: Path) -> None:
    landing, out = tmp_path / "in", tmp_path / "out"
    for name in ("a", "b"):
        write_shard(landing / "web" / f"{name}.jsonl", [{"text": english(hash_of(name) + n)} for n in range(3)])
    steps.inventory(str(landing), str(out), "2026-11-30")
    (landing / "web" / "a.jsonl").rename(tmp_path / "aside")
    with pytest.raises(StorageError, match=r"web/a\.jsonl: UnreadableError"):
        steps.compute_signals(str(out), "group-0")
    (landing / "web" / "a.jsonl").write_bytes((landing / "web" / "b.jsonl").read_bytes())
    with pytest.raises(DataError, match="changed since the inventory"):
        steps.compute_signals(str(out), "group-0")
    (tmp_path / "aside").rename(landing / "web" / "a.jsonl")
    assert run(landing, out)["read"] == 6


def hash_of(name: str) -> int:
    return sum(name.encode()) * 1000


@pytest.mark.parametrize("damage", ["deleted", "cut", "signals cut", "status of a killed run"])
def test_damaged_output_is_made_again(landing: Path, output: Path, tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    shutil.copytree(output, out)
    victim = max((out / "curated").glob("*.parquet"), key=lambda path: path.stat().st_size)
    if damage == "deleted":
        victim.unlink()
    elif damage == "cut":
        victim.write_bytes(victim.read_bytes()[:100])
    elif damage == "signals cut":
        victim = next((out / "signals").glob("*.parquet"))
        victim.write_bytes(victim.read_bytes()[:100])
        with pytest.raises(DataError, match="no signals yet"):
            steps.cluster_duplicates(str(out))
    else:  # another configuration's run wrote its files and was killed before its status
        strict = stricter(tmp_path)
        plan = steps.inventory(str(landing), str(out), "2026-11-30", curation=str(strict))
        with pytest.raises(DataError, match="no verdicts of this configuration"):
            steps.publish(str(out))
        steps.cluster_duplicates(str(out))
        steps.write_verdicts(str(out), plan["groups"][0])
        for status in (out / "status").glob("*.json"):
            status.unlink()
    if damage in ("deleted", "cut"):
        with pytest.raises(DataError, match="damaged"):
            steps.publish(str(out))
    run(landing, out)
    assert tree(out) == tree(output)
    verify_artifact(str(out))


def stricter(folder: Path) -> Path:
    config = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text())
    config["rules"]["en"]["bounds"]["gopher_words"]["min"] = 10_000
    path = folder / "strict.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def test_files_that_differ_by_name_alone_are_read_by_their_names(tmp_path: Path) -> None:
    rows = [{"text": english(n)} for n in range(3)]
    write_shard(tmp_path / "in" / "s" / "a.jsonl", rows)
    shutil.copy(tmp_path / "in" / "s" / "a.jsonl", tmp_path / "in" / "s" / "a.bak")
    (tmp_path / "in" / "s" / "x.txt").write_text(english(7))
    (tmp_path / "in" / "s" / "y.txt").write_text(english(7))
    published = run(tmp_path / "in", tmp_path / "out")
    assert (published["read"], published["unreadable"]) == (5, 1)
    assert {row["source_id"] for row in verdicts(tmp_path / "out")} == {None, "s/x.txt", "s/y.txt"}


def test_output_inside_the_input_is_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(ConfigError, match="lies inside the input"):
        steps.inventory(str(tmp_path / "in"), str(tmp_path / "link" / "out"), "2026-11-30")


def test_odd_values_cost_their_own_row_alone(tmp_path: Path) -> None:
    good = {"text": english(3), "id": "good", "kind": "poem", "big": 10**30, "raw": "x"}
    marks = "a" + "\u0301\u0323" * 400
    deep = b'{"text": "x", "deep": ' + b"[" * 1010 + b"]" * 1010 + b"}"
    lines = [json.dumps(good).encode(), deep, json.dumps({"text": marks}).encode()]
    many = {"text": english(4), **{f"key{n}": n for n in range(60_000)}}
    (tmp_path / "in" / "s").mkdir(parents=True)
    (tmp_path / "in" / "s" / "a.jsonl").write_bytes(b"\n".join([*lines, json.dumps(many).encode()]))
    when = pa.array([0, 2**50], pa.timestamp("s"))
    table = pa.table({"text": [english(5), english(6)], "when": when, "raw": pa.array([b"\xff", b"a"], pa.binary())})
    pq.write_table(table, tmp_path / "in" / "s" / "b.parquet")
    published = run(tmp_path / "in", tmp_path / "out")
    assert (published["read"], published["quarantined"]) == (6, 3)
    faults = {row["reasons"][0]["rule"] for row in verdicts(tmp_path / "out") if row["verdict"] == "quarantined"}
    assert faults == {"unsupported_value", "combining_marks"}
    curated = [row for path in (tmp_path / "out" / "curated").glob("*") for row in pq.read_table(path).to_pylist()]
    extra = next(orjson.loads(row["extra"]) for row in curated if row["source_id"] == "good")
    assert extra["kind"] == "poem" and extra["raw"] == "x"
    assert "1970-01-01" in next(row["extra"] for row in curated if "when" in row["extra"])


@pytest.mark.parametrize("dates", ["2026-01-01", ""], ids=["dated", "without dates"])
def test_records_beside_the_shards_are_no_documents(tmp_path: Path, dates: str) -> None:
    landing, out = tmp_path / "landing", str(tmp_path / "out")
    write_shard(landing / dates / "web" / "x.jsonl", [{"text": "a document"}])
    write_shard(landing / dates / "web" / "domains" / "x.jsonl", [{"text": "a site's pages on domains"}])
    for number, folder in enumerate(("instructions", "preferences", "domains/legal")):
        write_shard(landing / folder / "x.jsonl", [{"messages": [], "prompt": str(number)}])
        os.utime(landing / folder / "x.jsonl", (4e9, 4e9))  # newer than every document
    ((date, place),) = steps.snapshots(str(landing)).items()
    assert place == (str(landing / dates) if dates else str(landing))
    assert date < "2090", "a landing zone is dated by its documents"
    steps.inventory(place, out, date)
    assert [shard.key for shard in read_manifest(out).shards] == ["web/domains/x.jsonl", "web/x.jsonl"]


def test_a_source_of_a_snapshot_may_have_any_name(tmp_path: Path) -> None:
    write_shard(tmp_path / "2026-01-01" / "instructions" / "x.jsonl", [{"text": "how to build a boat"}])
    steps.inventory(str(tmp_path / "2026-01-01"), str(tmp_path / "out"), "2026-01-01")
    assert [shard.source for shard in read_manifest(str(tmp_path / "out")).shards] == ["instructions"]


def test_snapshots(tmp_path: Path) -> None:
    write_shard(tmp_path / "2026-01-02" / "a" / "x.jsonl", [{"text": "x"}])
    write_shard(tmp_path / "2026-01-01" / "a" / "x.jsonl", [{"text": "x"}])
    write_shard(tmp_path / "instructions" / "x.jsonl", [{"text": "x"}])
    assert list(steps.snapshots(str(tmp_path))) == ["2026-01-01", "2026-01-02"]
    flat = tmp_path / "instructions"
    (date,) = steps.snapshots(str(flat))
    assert steps.snapshots(str(flat)) == {date: str(flat)}
    with pytest.raises(DataError, match="nothing: no such folder"):
        steps.inventory(str(tmp_path / "nothing"), str(tmp_path / "o"), date)


def test_on_s3(landing: Path, output: Path, bucket: str, tmp_path: Path) -> None:
    from tasks.corpus.storage import fetch_folder, join, upload_folder

    upload_folder(landing, join(bucket, "in"))
    with _own_cluster():
        run_s3 = run(join(bucket, "in"), join(bucket, "out"))  # type: ignore[arg-type]
    assert run_s3["hash"] == read_artifact(str(output)).hash
    fetched = fetch_folder(join(bucket, "out"), tmp_path / "fetched")
    assert tree(fetched) == tree(output)


def _own_cluster(workers: int = 1) -> contextlib.ExitStack:
    """Workers started now, so that they see this test's credentials."""
    stack = contextlib.ExitStack()
    stack.enter_context(cluster._activated(None))  # type: ignore[arg-type]
    stack.enter_context(dask_client(workers))
    return stack
