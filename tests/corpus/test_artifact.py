"""Artifacts are immutable and trace back; the registry changes by compare-and-swap."""

from pathlib import Path

import pytest

from tasks.corpus.artifact import read_artifact, verify_artifact, write_artifact
from tasks.corpus.lineage import walk
from tasks.corpus.registry import promote, read_registry
from tasks.errors import DataError


def make(folder: Path, name: str, parents: list[Path] = (), content: str = "x", **more):  # type: ignore[assignment]
    uri = folder / name
    uri.mkdir(parents=True, exist_ok=True)
    (uri / "file.txt").write_text(content)
    known = [read_artifact(str(parent)) for parent in parents]
    return uri, write_artifact(
        str(uri),
        kind="model",
        stage=name,
        key=name,
        config_hash="c",
        code_version=1,
        parents=[artifact.hash for artifact in known],
        parent_uris=[str(parent) for parent in parents],
        **more,
    )


def test_hash_covers_content_and_not_time_or_metrics(tmp_path: Path) -> None:
    _, first = make(tmp_path / "1", "a", metrics={"seconds": 1})
    _, same = make(tmp_path / "2", "a", metrics={"seconds": 2})
    _, other = make(tmp_path / "3", "a", content="y")
    assert first.hash == same.hash != other.hash


def test_a_finished_artifact_is_not_overwritten(tmp_path: Path) -> None:
    uri, first = make(tmp_path, "a")
    _, again = make(tmp_path, "a", content="changed")
    assert again == first == read_artifact(str(uri))
    with pytest.raises(DataError, match=r"file\.txt: its checksum"):
        verify_artifact(str(uri))


def test_missing_and_tampered(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no artifact here"):
        read_artifact(str(tmp_path))
    uri, _ = make(tmp_path, "a")
    verify_artifact(str(uri))
    (uri / "file.txt").unlink()
    with pytest.raises(DataError, match="missing"):
        verify_artifact(str(uri))
    path = uri / "artifact.json"
    path.write_text(path.read_text().replace('"key": "a"', '"key": "b"'))
    with pytest.raises(DataError, match="its hash does not fit"):
        read_artifact(str(uri))


def test_lineage_walks_to_the_shards_and_says_what_is_gone(tmp_path: Path) -> None:
    corpus, _ = make(tmp_path, "corpus", data={"man/part-000.jsonl.zst": "ab" * 16})
    tokens, _ = make(tmp_path, "tokens", [corpus])
    model, _ = make(tmp_path, "model", [tokens, corpus])
    steps = [(step.depth, Path(step.uri).name) for step in walk(str(model))]
    assert steps == [(0, "model"), (1, "tokens"), (1, "corpus")]
    (corpus / "artifact.json").unlink()
    (corpus / "file.txt").write_text("published again")
    make(tmp_path, "corpus", content="published again")
    assert "replaced since" in (list(walk(str(model)))[-1].problem or "")
    (corpus / "artifact.json").unlink()
    assert "no artifact here" in (list(walk(str(model)))[-1].problem or "")


def test_registry(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first, artifact = make(tmp_path, "a")
    second, _ = make(tmp_path, "b")
    assert read_registry(store, "tiny")["candidate"] is None
    promote(store, "tiny", str(first))
    promote(store, "tiny", str(first))
    assert read_registry(store, "tiny")["candidate"]["hash"] == artifact.hash
    assert len(read_registry(store, "tiny")["history"]) == 1
    promote(store, "tiny", str(first), "released")
    with pytest.raises(DataError, match="rebase"):
        promote(store, "tiny", str(second), "released", expected_released="f" * 64)
    promote(store, "tiny", str(second), "released", expected_released=artifact.hash)
    pointers = [entry["pointer"] for entry in read_registry(store, "tiny")["history"]]
    assert pointers == ["candidate", "released", "released"]
