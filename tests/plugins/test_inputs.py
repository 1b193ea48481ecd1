"""What a run works on: snapshot, corpus, instructions, parents, range of stages."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from plugins.inputs import NoSnapshot, ancestry, cascade_dag_id, choose_inputs, choose_snapshot
from tasks.corpus.artifact import write_artifact
from tasks.corpus.shards import write_shard
from tasks.errors import DataError
from tasks.settings import Settings, settings


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    write_shard(tmp_path / "landing" / "instructions" / "some.jsonl", [{"text": "x"}])
    return settings(home=tmp_path, data=str(tmp_path / "landing"), store=str(tmp_path / "store"))


def sealed(uri: Path, kind: str, stage: str, parents: list[str] | None = None) -> str:
    uri.mkdir(parents=True)
    (uri / "file").write_text(str(uri))
    write_artifact(
        str(uri), kind=kind, stage=stage, key=stage, config_hash="", code_version=1, parent_uris=parents or []
    )
    return str(uri)


def test_snapshot_of_form_or_partition_else_the_newest(tmp_path: Path) -> None:
    for date in ("2026-01-14", "2026-01-15"):
        write_shard(tmp_path / date / "web" / "part-000.jsonl", [{"text": "some text"}])
    assert choose_snapshot(str(tmp_path), None) == ("2026-01-15", str(tmp_path / "2026-01-15"))
    assert choose_snapshot(str(tmp_path), "2026-01-14")[0] == "2026-01-14"
    with pytest.raises(NoSnapshot, match="no snapshot 2026-01-16; the newest are 2026-01-15, 2026-01-14"):
        choose_snapshot(str(tmp_path), "2026-01-16")


def test_an_empty_landing_zone_says_what_it_expects(tmp_path: Path) -> None:
    with pytest.raises(NoSnapshot, match=r"no shards; expected <date>/<source>/part-"):
        choose_snapshot(str(tmp_path), None)


def test_the_event_names_the_corpus(config: Settings, micro: str) -> None:
    event = SimpleNamespace(extra={"corpus": "s3://bucket/corpus/2026-01-15"})
    chosen = choose_inputs(micro, {}, [event], config)
    assert chosen["corpus"] == "s3://bucket/corpus/2026-01-15"
    assert chosen["stages"] == ["tokenizer", "pretrain", "sft"]
    assert chosen["instructions"] == f"{config.data}/instructions"


def test_instructions_are_known_by_their_content(config: Settings, micro: str) -> None:
    event = SimpleNamespace(extra={"corpus": "s3://bucket/corpus/2026-01-15"})
    before = choose_inputs(micro, {}, [event], config)["instructions_hash"]
    write_shard(Path(config.data) / "instructions" / "some.jsonl", [{"text": "y"}])
    assert choose_inputs(micro, {}, [event], config)["instructions_hash"] != before


def test_without_event_and_form_the_newest_corpus_is_taken(config: Settings, micro: str) -> None:
    with pytest.raises(DataError, match="no curated corpus yet"):
        choose_inputs(micro, {}, [], config)
    for date in ("2026-01-14", "2026-01-15"):
        sealed(Path(config.store) / "corpus" / date, "corpus", "curate")
    assert choose_inputs(micro, {}, [], config)["corpus"].endswith("2026-01-15")


def test_the_range_of_stages(config: Settings, micro: str) -> None:
    chosen = choose_inputs(micro, {"corpus": "c", "last_stage": "pretrain"}, [], config)
    assert chosen["stages"] == ["tokenizer", "pretrain"]
    with pytest.raises(DataError, match="first stage 'sft' comes after last stage 'pretrain'"):
        choose_inputs(micro, {"corpus": "c", "first_stage": "sft", "last_stage": "pretrain"}, [], config)


def test_starting_late_needs_what_came_before(config: Settings, micro: str) -> None:
    corpus = sealed(Path(config.store) / "corpus" / "2026-01-15", "corpus", "curate")
    with pytest.raises(DataError, match=r"stage 'tokenizer' was not trained from .*start at it, or name a parent"):
        choose_inputs(micro, {"corpus": corpus, "first_stage": "sft"}, [], config)


def test_a_given_parent_brings_its_ancestors(config: Settings, micro: str, tmp_path: Path) -> None:
    corpus = sealed(tmp_path / "corpus", "corpus", "curate")
    tokenizer = sealed(tmp_path / "tokenizer", "tokenizer", "tokenizer", [corpus])
    model = sealed(tmp_path / "model", "model", "pretrain", [tokenizer])
    assert ancestry(model) == {"tokenizer": tokenizer, "pretrain": model}
    chosen = choose_inputs(micro, {"corpus": corpus, "parent": model, "first_stage": "sft"}, [], config)
    assert chosen["parents"] == {"tokenizer": tokenizer, "pretrain": model}


def test_missing_instructions_are_named(config: Settings, micro: str, tmp_path: Path) -> None:
    elsewhere = settings(home=tmp_path / "other", data=str(tmp_path / "empty"))
    with pytest.raises(DataError, match="no instruction records in"):
        choose_inputs(micro, {"corpus": "c"}, [], elsewhere)


def test_preferences_where_the_recipe_reads_them(config: Settings, micro: str) -> None:
    assert "preferences" not in choose_inputs(micro, {"corpus": "c"}, [], config)
    with pytest.raises(DataError, match="no preference records in"):
        choose_inputs("tiny", {"corpus": "c"}, [], config)
    folder = Path(config.data) / "preferences"
    write_shard(folder / "some.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    chosen = choose_inputs("tiny", {"corpus": "c"}, [], config)
    assert chosen["preferences"] == str(folder) and len(chosen["preferences_hash"]) == 64
    assert choose_inputs("tiny", {"corpus": "c", "preferences": str(folder)}, [], config) == chosen


def test_dag_ids() -> None:
    assert cascade_dag_id("tiny") == "train_cascade"
    assert cascade_dag_id("micro") == "train_cascade_micro"
