"""Failed shards: on record, within a budget or not, repaired alone, and the result of an undisturbed run."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.corpus.artifact import read_artifact, verify_artifact
from tasks.corpus.manifest import read_manifest
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import read_json
from tasks.curation import steps
from tasks.curation.config import CurationConfig
from tasks.curation.failures import read_failures
from tasks.curation.repair import plan_repair, read_repairs, record_repair
from tasks.curation.signal_files import signals_key
from tasks.errors import DataError, StorageError
from tests.curation.test_steps import english, tree

pytestmark = pytest.mark.usefixtures("in_process")

SHARDS, GROUPS = 18, 3
BAD = ("web/part-03.jsonl", "web/part-15.jsonl")  # of the first and the last group


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 shards of four documents; every second one repeats a document of the shard before it."""
    folder = tmp_path_factory.mktemp("landing") / "2026-11-30"
    for number in range(SHARDS):
        texts = [english(10 * number + row) for row in range(3)] + [english(10 * (number - number % 2))]
        write_shard(folder / "web" / f"part-{number:02}.jsonl", [{"text": text} for text in texts])
    return folder


@pytest.fixture(scope="module")
def undisturbed(in_process: Any, landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    curate(landing, out)
    return out


def curate(landing: Path, out: Path, budget: float = 0.0) -> dict[str, Any]:
    groups = steps.inventory(str(landing), str(out), "2026-11-30")["groups"]
    return finish(out, groups, groups, budget)


def finish(out: Path, groups: list[str], all_groups: list[str], budget: float = 0.0) -> dict[str, Any]:
    """The steps after the inventory, or after a repair's plan; with how many shards were computed and rewritten."""
    measured = [steps.compute_signals(str(out), group, budget=budget) for group in groups]
    steps.cluster_duplicates(str(out), budget=budget)
    decided = [steps.write_verdicts(str(out), group) for group in all_groups]
    counts = {
        "computed": sum(item["shards"] - item["reused"] for item in measured),
        "rewritten": sum(item["rewritten"] for item in decided),
    }
    return {**steps.publish(str(out)), **counts}


def obstruct(landing: Path, out: Path, keys: tuple[str, ...] = BAD) -> list[Path]:
    """Folders where the signals of these shards must go: the store refuses just these writes."""
    steps.inventory(str(landing), str(out), "2026-11-30")
    manifest = read_manifest(str(out))
    config = CurationConfig.model_validate(manifest.curation)
    names = [signals_key(shard, config) for shard in manifest.shards if shard.key in keys]
    places = [out / "signals" / f"{name}.parquet" for name in names]
    for place in places:
        place.mkdir(parents=True)
    return places


def stamps(out: Path) -> dict[str, int]:
    """When each file of the corpus was last written, in nanoseconds."""
    files = [path for folder in ("signals", "curated") for path in (out / folder).rglob("*.parquet")]
    return {path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in files if path.is_file()}


def test_failures_are_on_record_and_repaired_alone(landing: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    places = obstruct(landing, out)
    groups = read_manifest(str(out)).groups
    assert len(groups) == GROUPS
    for group in (groups[0], groups[-1]):
        with pytest.raises(StorageError, match=f"1 of 6 shards of {group} failed"):
            steps.compute_signals(str(out), group)
    steps.compute_signals(str(out), groups[1])
    records = read_failures(str(out), read_manifest(str(out)))
    assert [(record.shard, record.step, record.kind) for record in records] == [
        (key, "signals", "StorageError") for key in BAD
    ]
    assert all("repair this shard" in record.remedy for record in records)
    with pytest.raises(DataError, match="2 shards have no signals yet"):
        steps.cluster_duplicates(str(out))

    for place in places:
        place.rmdir()
    before = stamps(out)
    plan = plan_repair(str(out))
    assert (plan["shards"], plan["groups"], plan["replaced"]) == (list(BAD), [groups[0], groups[-1]], [])
    done = finish(out, plan["groups"], plan["all_groups"])
    assert done["computed"] == len(BAD)
    assert {name: when for name, when in stamps(out).items() if name in before} == before
    assert read_failures(str(out), read_manifest(str(out))) == []
    assert tree(out) == tree(undisturbed)
    assert done["hash"] == read_artifact(str(undisturbed)).hash
    with pytest.raises(DataError, match="nothing to repair: no failed shard"):
        plan_repair(str(out))


def test_a_run_goes_on_within_its_budget_and_says_what_it_left_out(
    landing: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    places = obstruct(landing, out)
    group = read_manifest(str(out)).groups[0]
    with pytest.raises(StorageError):
        steps.compute_signals(str(out), group, budget=0.1, last_try=False)  # its store may come back
    with pytest.raises(StorageError):
        curate(landing, out, budget=0.06)  # one of 18
    published = curate(landing, out, budget=0.12)
    assert published["left_out"] == len(BAD)
    report = read_json(str(out / "report.json"))
    assert report["left_out"] == list(BAD)
    assert report["read"] == 4 * (SHARDS - len(BAD))
    assert set(BAD).isdisjoint(read_artifact(str(out)).data)
    verify_artifact(str(out))

    for place in places:
        place.rmdir()
    texts = {name: when for name, when in stamps(out).items() if name.startswith("curated/")}
    plan = plan_repair(str(out))
    done = finish(out, plan["groups"], plan["all_groups"])
    assert (done["computed"], done["left_out"]) == (len(BAD), 0)
    after = stamps(out)
    # Documents of part-02 and part-14 stand in part-03 and part-15 too; which of two survives may change by a repair.
    rewritten = {name for name, when in texts.items() if after[name] != when}
    assert done["rewritten"] == len(rewritten) + len(BAD) and len(rewritten) <= 2
    assert tree(out) == tree(undisturbed)


@pytest.mark.slow
def test_a_replaced_file_is_looked_at_again(landing: Path, undisturbed: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "2026-11-30", tmp_path / "out"
    shutil.copytree(landing, own)
    curate(own, out)
    (own / BAD[0]).write_bytes((own / BAD[0]).read_bytes()[:-200])
    plan = plan_repair(str(out), pattern="web/part-03*", only_failed=False)
    assert plan["replaced"] == [BAD[0]]
    done = finish(out, plan["groups"], plan["all_groups"])
    assert (done["computed"], done["quarantined"]) == (1, 1)
    shutil.copy(landing / BAD[0], own / BAD[0])
    plan = plan_repair(str(out), groups=plan["groups"], pattern=BAD[0], only_failed=False)
    assert finish(out, plan["groups"], plan["all_groups"])["computed"] == 0, "its content was measured before"
    assert tree(out) == tree(undisturbed)


def test_what_cannot_be_repaired_is_refused(landing: Path, undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no group group-9; its groups are group-0, group-1, group-2"):
        plan_repair(str(undisturbed), groups=["group-9"])
    with pytest.raises(DataError, match="no shard fits"):
        plan_repair(str(undisturbed), pattern="nothing/*", only_failed=False)
    own, out = tmp_path / "2026-11-30", tmp_path / "out"
    shutil.copytree(landing, own)
    steps.inventory(str(own), str(out), "2026-11-30")
    (own / BAD[1]).unlink()
    with pytest.raises(DataError, match=rf"{BAD[1]}: no longer in .*; put it back, or run curate_corpus"):
        plan_repair(str(out), pattern=BAD[1], only_failed=False)


def test_who_repaired_what_and_why_is_kept(tmp_path: Path) -> None:
    for number in range(2):
        record_repair(str(tmp_path), f"run {number}", by="ada", reason="new copy", shards=[BAD[number]], computed=1)
    record_repair(str(tmp_path), "run 1", by="ada", reason="again", shards=[BAD[1]], computed=0)
    records = read_repairs(str(tmp_path))
    assert {(record["run"], record["reason"]) for record in records} == {("run 0", "new copy"), ("run 1", "again")}
