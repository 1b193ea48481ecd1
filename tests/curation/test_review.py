"""The report of a run: true counts, near misses, examples that are masked and escaped, and one offline page."""

import csv
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.curation.cluster import dask_client
from tasks.curation.review import draw, gather, lines
from tasks.errors import DataError
from tests.browser import browser, click
from tests.curation.test_steps import english


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("review")
    nasty = "<script>alert(1)</script> Write to eve@example.org. "
    rows: list[dict[str, Any]] = [{"text": english(n), "id": f"good{n}"} for n in range(6)]
    rows += [{"text": english(0), "id": "again"}, {"text": nasty, "id": "short"}, {"no": "text"}]
    rows += [{"text": english(50, 30) + " One more.", "id": "long"}, {"text": english(50, 30), "id": "near"}]
    write_shard(folder / "in" / "web" / "a.jsonl.gz", rows)
    write_shard(folder / "in" / "books" / "b.jsonl.gz", [{"text": nasty + "x"}, {"text": english(99, 3)}])
    out = folder / "out"
    with dask_client(1):
        plan = steps.inventory(str(folder / "in"), str(out), "2026-11-30")
        for group in plan["groups"]:
            steps.compute_signals(str(out), group)
        steps.cluster_duplicates(str(out))
        for group in plan["groups"]:
            steps.write_verdicts(str(out), group)
        steps.publish(str(out))
    yield out


def found(output: Path, **options: Any) -> dict[str, Any]:
    return gather(str(output), **{"near": 0.05, "examples": 3, "seed": 1, **options})


def test_removal_adds_up_to_the_report(output: Path) -> None:
    gathered = found(output)
    report = orjson.loads((output / "report.json").read_bytes())
    sums: dict[str, dict[str, int]] = {}
    for item in gathered["removal"]:
        total = sums.setdefault(item["rule"], {"documents": 0, "bytes": 0})
        total["documents"] += item["documents"]
        total["bytes"] += item["bytes"]
    assert sums == report["reasons"]
    assert {item["source"] for item in gathered["removal"] if item["rule"] == "min_characters"} == {"web", "books"}
    levels = {(item["level"], item["rule"]): item["documents"] for item in gathered["levels"]}
    assert levels == {("document", "duplicate_exact"): 1, ("document", "duplicate_near"): 1}


def test_every_byte_is_accounted_for_once(output: Path) -> None:
    gathered, report = found(output), orjson.loads((output / "report.json").read_bytes())
    assert sum(gathered["account"].values()) == report["bytes"]["read"]
    assert gathered["account"]["written"] == report["bytes"]["written"]
    assert gathered["account"]["duplicate documents"] > 0 < gathered["account"]["documents that fail rules"]
    assert sum(part["documents"] for part in gathered["parts"]) == report["read"]


def test_near_misses_are_on_the_good_side(output: Path) -> None:
    wide, narrow = found(output, near=1.0)["near_misses"], found(output, near=0.0)["near_misses"]
    assert sum(narrow.values()) <= sum(wide.values())
    assert wide["gopher_words"] >= 1
    for item in found(output, near=1.0, examples=9)["examples"]["kept gopher_words"]:
        assert item["verdict"] == "kept" and item["reason"]["value"] >= 50


def test_examples_are_the_same_for_a_seed(output: Path) -> None:
    first, again, other = (found(output, seed=seed)["examples"] for seed in (1, 1, 2))
    assert first == again
    assert first["kept"] != other["kept"]
    assert all(len(items) <= 3 for items in first.values())


def test_the_page_is_masked_escaped_and_offline(output: Path) -> None:
    gathered = found(output)
    page = Path(draw(str(output), gathered)).read_text(encoding="utf-8")
    assert "eve@example.org" not in page and "[e-mail]" in page
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "default-src 'none'" in page and page.count("<script>") == 1
    assert "<svg" in page and 'data-judgement="wrong"' in page


def test_judgements_are_clicked_and_saved_as_csv(output: Path, tmp_path: Path) -> None:
    """Two examples judged, one of them twice: the file has a row for each, with the last word on it."""
    page = Path(draw(str(output), found(output)))
    with browser(tmp_path) as chrome:
        chrome.get(page.as_uri())
        for folded in chrome.find_elements("css selector", "details:not([open]) > summary"):
            click(folded)
        first, second = chrome.find_elements("css selector", "article.card")[:2]
        save = chrome.find_element("id", "save")
        assert not save.is_enabled() and save.text == "No judgement yet"
        for example, judgement in ((first, "right"), (second, "unsure"), (first, "wrong")):
            click(example.find_element("css selector", f"button[data-judgement={judgement}]"))
        pressed = first.find_elements("css selector", "button[aria-pressed=true]")
        assert [button.text for button in pressed] == ["wrong"] and save.text == "Save 2 judgements as CSV"
        documents = [example.get_attribute("data-doc") for example in (first, second)]
        save.click()
        saved, deadline = tmp_path / "judgements.csv", time.monotonic() + 20
        while not saved.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [entry for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"] == []
    rows = list(csv.DictReader(saved.open(newline="")))
    assert [(row["doc_id"], row["judgement"]) for row in rows] == list(zip(documents, ("wrong", "unsure"), strict=True))


def test_the_text_names_every_rule(output: Path) -> None:
    text = "\n".join(lines(found(output)))
    for rule in orjson.loads((output / "report.json").read_bytes())["reasons"]:
        assert rule in text


def test_a_run_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no report\.json"):
        found(tmp_path)
