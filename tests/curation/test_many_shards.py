"""5,000 shards at default settings: planned as groups that Airflow can map over, and curated as such."""

import time
from collections import Counter
from pathlib import Path

import orjson
import pytest

from tasks.corpus.manifest import read_manifest
from tasks.corpus.storage import read_json
from tasks.curation import steps
from tasks.curation.cluster import dask_client
from tasks.settings import Settings
from tests.curation.test_steps import english

SHARDS, DATE = 5_000, "2026-01-15"


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / DATE
    for number in range(SHARDS):
        shard = folder / f"web-{number % 7}" / f"part-{number:05}.jsonl"
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.write_bytes(orjson.dumps({"text": english(number)}) + b"\n")
    return folder


def test_they_are_planned_as_even_groups(landing: Path, tmp_path: Path) -> None:
    limit = Settings.model_fields["max_groups"].default
    planned = steps.inventory(str(landing), str(tmp_path / "out"), DATE, max_groups=limit)
    sizes = Counter(shard.group for shard in read_manifest(str(tmp_path / "out")).shards)
    assert planned["shards"] == sum(sizes.values()) == SHARDS
    assert sorted(sizes) == planned["groups"] and len(sizes) == limit == 64
    assert max(sizes.values()) <= 1.1 * min(sizes.values()), sizes
    assert len(orjson.dumps(planned["groups"])) < 2_000, "what Airflow is handed stays small"


@pytest.mark.slow
def test_they_are_curated_group_by_group(landing: Path, tmp_path: Path) -> None:
    out, began = str(tmp_path / "out"), time.monotonic()
    with dask_client(2):
        limit = Settings.model_fields["max_groups"].default
        groups = steps.inventory(str(landing), out, DATE, max_groups=limit)["groups"]
        for group in groups:
            steps.compute_signals(out, group, workers=2)
        steps.cluster_duplicates(out, workers=2)
        for group in groups:
            steps.write_verdicts(out, group, workers=2)
        steps.publish(out)
    report = read_json(f"{out}/report.json")
    print(f"\n{SHARDS:,} shards in {len(groups)} groups: {time.monotonic() - began:.0f} s")
    assert report["read"] == report["kept"] + report["dropped"] + report["quarantined"] == SHARDS
    assert len(report["shards"]) == SHARDS
