"""Domains: declared, refused, delivered, curated against the corpus' index, trained once, released or rebased."""

from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from tasks.cascade import domains, retraining
from tasks.cascade.domains import Delivery, load_domain, look
from tasks.corpus.artifact import read_artifact, write_artifact
from tasks.corpus.registry import promote, read_registry, roll_back
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import exists, join, read_json
from tasks.curation import steps
from tasks.curation.cluster import _activated
from tasks.errors import ConfigError, DataError
from tasks.settings import CONTRACTS, Settings
from tests.chaos.runs import english
from tests.training.tuning_data import make_parent

DOMAINS = str(CONTRACTS / "domains")


@pytest.fixture(scope="module", autouse=True)
def in_process() -> Any:
    options: dict[str, Any] = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(**options) as client, _activated(client):
        yield client


def record(seed: int, **more: Any) -> dict[str, Any]:
    asked = f"What is known of case {seed}?"
    answer = {"role": "assistant", "content": english(seed, 4)}
    return {"messages": [{"role": "user", "content": asked}, answer], **more}


@pytest.fixture
def config(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", data=str(tmp_path / "landing"), store=str(tmp_path / "store"))


def land(config: Settings, name: str, records: list[dict[str, Any]], domain: str = "legal") -> Delivery:
    write_shard(Path(config.data) / "domains" / domain / name, records)
    return look(domain, config.data)


def test_shipped_domains_are_four_and_a_fifth_is_a_file(tmp_path: Path) -> None:
    assert set(domains.load_domains(DOMAINS)) == {"code", "finance", "legal", "medical"}
    fifth = (CONTRACTS / "domains" / "legal.yaml").read_text().replace("legal", "law_of_the_sea")
    (tmp_path / "law_of_the_sea.yaml").write_text(fifth)
    assert load_domain(str(tmp_path), "law_of_the_sea").stage.kind == "adapt"
    (tmp_path / "law_of_the_sea.yaml").rename(tmp_path / "law.yaml")
    with pytest.raises(ConfigError, match="a domain's file is named like it"):
        domains.load_domains(str(tmp_path))


@pytest.mark.parametrize("name", ["astrology", "../../etc/passwd", "", "code\n"])
def test_a_domain_that_nobody_configured_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is not configured; there are: code, finance, legal, medical\. To add one"):
        load_domain(DOMAINS, name)


def test_a_delivery_is_known_by_its_content(config: Settings) -> None:
    with pytest.raises(DataError, match="no records"):
        look("legal", config.data)
    first = land(config, "a.jsonl", [record(1)])
    assert land(config, "a.jsonl", [record(1)]) == first
    assert land(config, "b.jsonl", [record(2)]).hash != first.hash
    other = land(config, "a.jsonl", [record(1)], "code")
    assert other.files == first.files
    assert other.hash != first.hash, "equal files of two domains are two deliveries"


def test_new_data_is_announced_once_and_again_when_nobody_trained_it(
    config: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert domains.unannounced(config) == []
    delivery = land(config, "a.jsonl", [record(1)])
    assert domains.unannounced(config) == [delivery]
    domains.record_announced(config.store, delivery.domain, delivery.hash)
    assert domains.unannounced(config) == []
    monkeypatch.setattr(domains, "REMIND", -domains.REMIND)
    assert domains.unannounced(config) == [delivery]
    domains.record_trained(config.store, delivery, model="m")
    assert domains.unannounced(config) == []
    more = land(config, "b.jsonl", [record(2)])
    assert domains.unannounced(config) == [more]


def test_records_are_held_against_the_corpus_and_each_other(config: Settings, tmp_path: Path) -> None:
    index = join(config.store, "index")
    twin = record(7)
    said = "\n\n".join(message["content"] for message in twin["messages"])
    write_shard(tmp_path / "2026-01-01" / "web" / "a.jsonl", [{"text": said}, {"text": english(900)}])
    corpus = join(config.store, "corpus", "2026-01-01")
    (group,) = steps.inventory(str(tmp_path / "2026-01-01"), corpus, "2026-01-01")["groups"]
    steps.compute_signals(corpus, group)
    steps.cluster_duplicates(corpus, index=index)
    before = read_json(join(index, "2026-01-01", "entry.json"))
    assert before["documents"] == 2

    rows = [record(1, category="contracts"), record(2), twin, record(2), {"messages": "none"}, record(3)]
    delivery = land(config, "x/a.jsonl.zst", rows)
    domain = load_domain(DOMAINS, "legal")
    options: dict[str, Any] = {"store": config.store, "curation": "default", "index": index}
    done = retraining.curate_records(delivery, domain, **options)
    assert [done[name] for name in ("read", "kept", "dropped", "quarantined")] == [6, 3, 2, 1]
    kept = [row for _, row in retraining._kept(done["corpus"])]
    assert [row["messages"] for row in kept] == [rows[n]["messages"] for n in (0, 1, 5)]
    assert kept[0]["category"] == "contracts"
    assert not exists(join(index, retraining.SNAPSHOT, "entry.json")), "the corpus' index is read and not written to"
    files = read_artifact(done["corpus"]).files
    assert retraining.curate_records(delivery, domain, **options) == done
    assert read_artifact(done["corpus"]).files == files


def test_new_tokens_are_those_of_files_that_no_model_saw(config: Settings, tmp_path: Path) -> None:
    model, domain = make_parent(tmp_path / "made"), load_domain(DOMAINS, "legal")
    options: dict[str, Any] = {"store": config.store, "curation": "default", "index": None}
    first = land(config, "a.jsonl", [record(n) for n in range(3)])
    corpus = retraining.curate_records(first, domain, **options)["corpus"]
    tokens = retraining.count_new(first, corpus, store=config.store, model=model)
    assert tokens > 100
    domains.record_trained(config.store, first)
    assert retraining.count_new(first, corpus, store=config.store, model=model) == 0
    second = land(config, "b.jsonl", [record(3)])
    corpus = retraining.curate_records(second, domain, **options)["corpus"]
    assert 0 < retraining.count_new(second, corpus, store=config.store, model=model) < tokens


def trained(store: str, name: str, parent: str) -> str:
    """An artifact that a training from `parent` would have made."""
    uri = join(store, "artifacts", name)
    Path(uri).mkdir(parents=True)
    (Path(uri) / "weights").write_text(name)
    given: dict[str, Any] = {"parents": [read_artifact(parent).hash], "parent_uris": [parent]} if parent else {}
    write_artifact(uri, kind="model", stage="adapt", key=name, config_hash="", code_version=1, **given)
    return uri


def test_the_same_delivery_has_one_training_and_another_domains_is_another(config: Settings, tmp_path: Path) -> None:
    model, domain = make_parent(tmp_path / "made"), load_domain(DOMAINS, "legal")
    parent = {"uri": model, "hash": read_artifact(model).hash}
    first = land(config, "a.jsonl", [record(n) for n in range(3)])
    records = str(Path(config.data) / "domains" / "legal")
    options: dict[str, Any] = {"line": "tiny", "records": records, "store": config.store, "home": str(config.home)}
    spec = retraining.plan_retraining(first, domain, parent=parent, **options)
    assert retraining.plan_retraining(first, domain, parent=parent, **options) == spec
    assert (spec.stage, spec.kind) == ("adapt.legal", "adapt")
    assert spec.parents["model"].hash == parent["hash"]
    other = first.model_copy(update={"domain": "code"})
    assert retraining.plan_retraining(other, load_domain(DOMAINS, "code"), parent=parent, **options).key != spec.key
    again = trained(config.store, "again", model)
    rebased = {"uri": again, "hash": read_artifact(again).hash}
    assert retraining.plan_retraining(first, domain, parent=rebased, **options).key != spec.key


def test_two_domains_at_once_end_in_one_model_or_are_told(config: Settings, tmp_path: Path) -> None:
    store, line = config.store, "tiny"
    with pytest.raises(DataError, match="no model is released yet"):
        retraining.released_model(store, line)
    base = trained(store, "base", "")
    promote(store, line, base, to="released", by="ada", why="first")
    parent = retraining.released_model(store, line)["hash"]
    legal, code = land(config, "a.jsonl", [record(1)]), land(config, "a.jsonl", [record(2)], "code")
    said: dict[str, Any] = {"line": line, "store": store, "by": "ada", "why": "new data", "run": "first"}

    one = retraining.release(legal, artifact=trained(store, "legal", base), parent=parent, **said)
    assert one["changed"] and (one["moved"], domains.trained(store, legal)["model"]) == ("", one["released"])  # type: ignore[index]
    two = retraining.release(code, artifact=trained(store, "code", base), parent=parent, **said)
    assert "has been released since; rebase the candidate on it and run its gates again" in two["moved"]
    assert domains.trained(store, code) is None
    assert not two["changed"] and read_registry(store, line)["released"]["hash"] == one["released"], "nothing changed"
    legal_again: dict[str, Any] = {"artifact": join(store, "artifacts", "legal"), "parent": parent, **said}
    assert retraining.release(legal, **legal_again) == one, "a second try of the task that released it"
    assert not retraining.release(legal, **{**legal_again, "run": "second"})["changed"], "another run of the same files"

    now = retraining.released_model(store, line)
    rebased = trained(store, "code rebased", now["uri"])
    two = retraining.release(code, artifact=rebased, parent=now["hash"], **said)
    assert two["moved"] == "" and read_registry(store, line)["released"]["hash"] == two["released"]
    history = read_registry(store, line)["history"]
    again = retraining.release(legal, **legal_again)
    assert again == {**one, "changed": False}, "it is in the released model"
    assert read_registry(store, line)["history"] == history
    back = roll_back(store, line, expected_released=two["released"], by="ada", why="worse")
    assert back["released"]["hash"] == one["released"]
