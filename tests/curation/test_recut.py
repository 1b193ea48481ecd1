"""Thresholds cut again: from the signals alone, and only text that changes is read and written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.corpus.artifact import verify_artifact
from tasks.corpus.local_store import LocalStore
from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.curation.cluster import dask_client
from tasks.curation.dedup import levels
from tasks.curation.recut import recut
from tasks.errors import ConfigError
from tasks.settings import CONTRACTS
from tests.chaos.runs import curate
from tests.curation.test_steps import english


def configuration(path: Path, change: dict[str, Any]) -> str:
    shipped = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**shipped, **change}, allow_unicode=True), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[None]:
    with dask_client(1):
        yield


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of one document each, of 10, 20 and 30 sentences."""
    folder = tmp_path_factory.mktemp("recut")
    for number in (1, 2, 3):
        text = english(1000 * number, 10 * number)
        write_shard(folder / "web" / f"{number}.jsonl.gz", [{"text": text, "id": str(number)}])
    return folder


def words(output: Path) -> dict[str, float]:
    found = {}
    for path in (output / "signals").glob("*.parquet"):
        for row in pq.read_table(path, columns=["source_id", "words"]).to_pylist():
            found[row["source_id"]] = row["words"]
    return found


def count_reads(landing: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of shards that are opened from now on. All work is done in this process, where they can be counted."""
    opened: list[str] = []
    honest = LocalStore.open

    def counting(self: LocalStore, key: str) -> Any:
        if self.uri == str(landing):
            opened.append(key)
        return honest(self, key)

    def here(client: Any, function: Any, items: Any, *arguments: Any, on_done: Any = None) -> Any:
        results = [function(item, *arguments) for item in items]
        for item, result in zip(items, results, strict=True):
            if on_done:
                on_done(item, result)
        return results, []

    monkeypatch.setattr(LocalStore, "open", counting)
    for module in (steps, levels):
        monkeypatch.setattr(module, "map_shards", here)
    return opened


def test_only_text_that_changes_is_read(landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    assert curate(landing, output)["kept"] == 3
    files = {path.name: path.stat().st_mtime_ns for path in (output / "curated").iterdir()}
    measured = words(output)
    between = (measured["1"] + measured["2"]) / 2
    stricter = {"overrides": [{"source": "web", "bounds": {"longer": {"signal": "words", "min": between}}}]}
    opened = count_reads(landing, monkeypatch)
    done = recut(str(output), configuration(tmp_path / "stricter.yaml", stricter), workers=1)
    assert (done["kept"], done["dropped"], done["rewritten"]) == (2, 1, 1)
    assert opened == []  # the shard that lost its only document is written without being read
    after = {path.name: path.stat().st_mtime_ns for path in (output / "curated").iterdir()}
    assert sum(after[name] != files[name] for name in files) == 1
    verify_artifact(str(output))

    done = recut(str(output), "default", workers=1)
    assert (done["kept"], done["rewritten"]) == (3, 1)
    assert opened == ["web/1.jsonl.gz"]


SHARED = "\n\n".join(english(seed, 5) for seed in (501, 502))
OFTEN = "All of the prices are in the money of the land where the work is done."


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies, near copies, paragraphs and a sentence that repeat across sources; what one rule drops would win."""
    folder = tmp_path_factory.mktemp("repeating")
    for number in range(4):
        texts = {
            f"near {number}": english(77, 20) + " More is here." * number,
            f"paragraph {number}": f"{english(600 + number, 8 + number)}\n\n{SHARED}",
            f"almost {number}": f"{english(650 + number)}\n\n{english(503, 30)} And {number} more.",
            f"sentence {number}": f"{english(700 + number)} {OFTEN} {english(750 + number)}",
            f"alone {number}": english(800 + number),
        }
        rows = [{"text": text, "id": name} for name, text in texts.items()]
        write_shard(folder / f"source{number}" / "a.jsonl.zst", rows)
    write_shard(folder / "quiet" / "a.jsonl.zst", [{"text": english(900 + n), "id": f"quiet {n}"} for n in range(9)])
    return folder


def test_no_level_reads_text_that_is_not_rewritten(
    repeating: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From strict to lenient and back: candidates that never took part before are decided without their text."""
    none = {"bounds": {"none": {"signal": "words", "max": 0}}}
    strict = configuration(
        tmp_path / "strict.yaml", {"overrides": [{"source": "source3", **none}, {"source": "source1", **none}]}
    )
    output = tmp_path / "out"
    curate(repeating, output, curation=strict)
    opened = count_reads(repeating, monkeypatch)
    for curation, kept in (("default", 26), (strict, 18)):
        before = {path.name: path.read_bytes() for path in (output / "curated").iterdir()}
        opened.clear()
        done = recut(str(output), curation, workers=1)
        shards = {shard.key: f"{shard.id}.parquet" for shard in steps.read_manifest(str(output)).shards}
        changed = {key for key, name in shards.items() if (output / "curated" / name).read_bytes() != before[name]}
        assert set(opened) <= changed and "quiet/a.jsonl.zst" not in changed
        assert done["kept"] == kept and done["rewritten"] == len(changed)
    report = orjson.loads((output / "report.json").read_bytes())
    assert {"paragraph_exact", "paragraph_near"} <= set(report["cuts"])


def test_the_result_is_that_of_a_run_with_the_new_thresholds(landing: Path, tmp_path: Path) -> None:
    strict = configuration(
        tmp_path / "strict.yaml", {"overrides": [{"source": "web", "bounds": {"few": {"signal": "words", "max": 250}}}]}
    )
    curate(landing, tmp_path / "recut")
    recut(str(tmp_path / "recut"), strict)
    curate(landing, tmp_path / "fresh", curation=strict)
    for folder in ("curated", "verdicts", "status"):
        for path in (tmp_path / "fresh" / folder).iterdir():
            own = (tmp_path / "recut" / folder / path.name).read_bytes()
            if folder == "status":
                old, new = orjson.loads(own), orjson.loads(path.read_bytes())
                assert {**old, "seconds": 0} == {**new, "seconds": 0}
            else:
                assert own == path.read_bytes()


def test_other_signals_are_refused_by_name(landing: Path, tmp_path: Path) -> None:
    curate(landing, tmp_path / "out")
    other = configuration(tmp_path / "other.yaml", {"language": {"head_characters": 500}})
    with pytest.raises(ConfigError, match="language"):
        recut(str(tmp_path / "out"), other)
