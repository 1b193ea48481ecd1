"""A shard that fails: its group alone fails, by name and with a remedy; mended, only its signals are computed again."""

import shutil
from pathlib import Path

import pytest

from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.errors import DataError
from tests.chaos.runs import SNAPSHOT, curate, english, tree

SHARDS = 10  # two groups of five

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for shard in range(SHARDS):
        rows = [{"text": english(30 * shard + n), "id": f"{n}"} for n in range(4)]
        write_shard(tmp_path / "in" / "web" / f"{shard}.jsonl.zst", rows)
    return tmp_path / "in"


def test_replaced_it_gives_what_an_undisturbed_run_gives(landing: Path, tmp_path: Path) -> None:
    curate(landing, tmp_path / "undisturbed")
    output, victim = str(tmp_path / "out"), landing / "web" / "2.jsonl.zst"
    groups = steps.inventory(str(landing), output, SNAPSHOT)["groups"]
    assert len(groups) == 2
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])  # as a copy that broke off after the inventory
    with pytest.raises(DataError, match=r"1 of 5 shards of group-0 failed; .*clear this task alone") as told:
        steps.compute_signals(output, "group-0")
    assert "\n  web/2.jsonl.zst: DataError: web/2.jsonl.zst: changed since the inventory; start a new run" in str(
        told.value
    )
    assert steps.compute_signals(output, "group-1")["reused"] == 0
    with pytest.raises(DataError, match=r"1 shards have no signals yet, e\.g\. web/2\.jsonl\.zst; clear their group"):
        steps.cluster_duplicates(output)

    victim.write_bytes(whole)
    again = steps.compute_signals(output, "group-0")
    assert (again["shards"], again["reused"]) == (5, 4)
    steps.cluster_duplicates(output)
    for group in groups:
        steps.write_verdicts(output, group)
    steps.publish(output)
    assert tree(output) == tree(tmp_path / "undisturbed")


def test_text_that_changes_before_it_is_written_names_its_row(landing: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out")
    groups = steps.inventory(str(landing), output, SNAPSHOT)["groups"]
    for group in groups:
        steps.compute_signals(output, group)
    steps.cluster_duplicates(output)
    victim = landing / "web" / "7.jsonl.zst"
    shutil.copy(victim, tmp_path / "aside")
    rows = [{"text": english(30 * 7 + n + (n == 2) * 5000), "id": f"{n}"} for n in range(4)]
    write_shard(victim, rows)
    with pytest.raises(DataError, match=r"web/7\.jsonl\.zst, row 2: its text changed since"):
        steps.write_verdicts(output, groups[1])
    steps.write_verdicts(output, groups[0])
    shutil.copy(tmp_path / "aside", victim)
    assert steps.write_verdicts(output, groups[1])["reused"] == 4
    steps.publish(output)
    curate(landing, tmp_path / "undisturbed")
    assert tree(output) == tree(tmp_path / "undisturbed")
