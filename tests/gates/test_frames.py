"""The tables that a contract reads: exact counts, and samples that depend on nothing but the subject."""

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.artifact import write_artifact
from tasks.corpus.storage import write_json
from tasks.gates import corpus_views, instruction_views
from tasks.gates.frames import read_subject, text_measures


def test_every_document_of_a_small_corpus_is_in_the_sample(corpus: Any, write_corpus: Any) -> None:
    views = read_subject("corpus", write_corpus(corpus)).views
    assert sorted(row["doc_id"] for row in views["documents"]) == [f"{index:032x}" for index in range(120)]
    (summary,) = views["summary"]
    assert (summary["rows_written"], summary["files"], summary["difference"]) == (120, 3, 0)
    assert (summary["kept_share"], summary["languages"]) == (0.5, 2)
    assert summary["duplicate_share"] == pytest.approx(10 / 130)


def test_a_large_corpus_is_sampled_by_its_hash(corpus: Any, write_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_views, "SAMPLE_ROWS", 30)
    uri = write_corpus(corpus)
    first, again = (read_subject("corpus", uri).views["documents"] for _ in range(2))
    assert first == again
    assert len({row["doc_id"] for row in first}) == 30
    assert {row["file"] for row in first} == {"curated/a.parquet", "curated/b.parquet"}
    by_id = {item["doc_id"]: item["text"] for part in corpus["documents"].values() for item in part}
    assert all(row["text"] == by_id[row["doc_id"]] for row in first)
    write_corpus({**corpus, "report": {**corpus["report"], "snapshot": "2025-01-02"}})
    (Path(uri) / "artifact.json").unlink()
    write_corpus({**corpus, "report": {**corpus["report"], "snapshot": "2025-01-02"}})
    assert read_subject("corpus", uri).views["documents"] != first


def test_a_sample_reads_only_so_many_files(corpus: Any, write_corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_views, "SAMPLE_FILES", 1)
    views = read_subject("corpus", write_corpus(corpus)).views
    assert len({row["file"] for row in views["documents"]}) == 1
    assert views["summary"][0]["rows_written"] == 120  # counted over all of them nevertheless


def test_documents_without_a_column_lack_it_in_the_frame(tmp_path: Path, corpus: Any) -> None:
    (tmp_path / "curated").mkdir()
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["b"]}), tmp_path / "curated" / "x.parquet")
    write_json(str(tmp_path / "report.json"), corpus["report"])
    write_artifact(str(tmp_path), kind="corpus", stage="curate", key="k", config_hash="0", code_version=1)
    (row,) = read_subject("corpus", str(tmp_path)).views["documents"]
    assert "language" not in row
    assert "rules" not in row


def test_text_is_measured_whole_though_shown_in_part() -> None:
    measures = text_measures("a b\u3000" * 5000 + "\x00\udc80")
    assert measures["characters"] == 20002
    assert measures["visible_characters"] == 10002
    assert (measures["nul_characters"], measures["invalid_characters"]) == (1, 1)


def test_instructions_are_counted_in_full_and_sampled(
    instructions: Any, write_instructions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_views, "SAMPLE_ROWS", 50)
    doubled = [*instructions, *copy.deepcopy(instructions[:7])]
    uri = write_instructions(doubled)
    first, again = (read_subject("instructions", uri) for _ in range(2))
    assert first == again
    (summary,) = first.views["summary"]
    assert (summary["records"], summary["duplicate_ids"], summary["duplicate_messages"]) == (607, 7, 7)
    assert len(first.views["records"]) == 50


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, {"roles": "", "assistant_messages": 0, "shortest_message": 0}),
        ({"messages": "hello"}, {"roles": "", "last_role": ""}),
        ({"messages": ["hello"]}, {"roles": "None", "unknown_roles": 1}),
        ({"messages": [{"role": "user", "content": None}]}, {"shortest_message": 0, "alternates": True}),
        ({"messages": [{"role": "assistant", "content": "x"}]}, {"alternates": False, "last_role": "assistant"}),
    ],
)
def test_records_of_any_shape_become_rows(record: dict[str, Any], expected: dict[str, Any]) -> None:
    row = instruction_views.record_row("x.jsonl", 0, record)
    assert expected.items() <= row.items()


def test_tokens_of_the_stage_itself_are_read(write_tokens: Any) -> None:
    views = read_subject("tokens", write_tokens(lambda folder: None)).views
    (summary,) = views["summary"]
    assert summary["tokenizer_matches"] is True
    assert (summary["size_difference"], summary["files_missing"]) == (0, 0)
    assert {row["split"] for row in views["sequences"]} == {"train", "heldout"}
    assert all(row["boundary_errors"] == 0 for row in views["sequences"])
    assert any(row["documents"] > 1 for row in views["sequences"])


def test_nested_metrics_are_named_by_their_path(tmp_path: Path) -> None:
    write_json(str(tmp_path / "m.json"), {"before": {"loss": 2.0}, "loss": 1.0, "curve": [3, 2, 1]})
    assert read_subject("metrics", str(tmp_path / "m.json")).views["metrics"] == [{"before.loss": 2.0, "loss": 1.0}]
