"""Paragraphs and sentences through the real steps: what is cut stands elsewhere, and the counts add up."""

import gzip
import random
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.curation.config import DedupConfig
from tasks.curation.dedup.shingles import shingles
from tasks.curation.why import explain, find_verdicts
from tasks.settings import CONTRACTS
from tests.curation.test_steps import english
from tests.oracles.passages import paragraphs, sentences

LICENCE = (
    "Permission is hereby granted to any person who has this text, and to those that come after, to copy it and to "
    "change it in every way that is right, so long as these words of the makers are with it."
)
TAKE = "All of the prices are in the money of the land where the work is done."


pytestmark = pytest.mark.usefixtures("in_process")


def lenient(folder: Path, **dedup: Any) -> str:
    """The shipped configuration of English without bounds: every English text passes."""
    config = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text())
    config["dedup"] |= dedup
    for rules in config["rules"].values():
        rules["bounds"] = {}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lenient.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return str(path)


def run(landing: Path, output: Path, config: str, index: str | None = None, snapshot: str = "2026-01-01") -> dict:
    plan = steps.inventory(str(landing), str(output), snapshot, curation=config)
    for group in plan["groups"]:
        steps.compute_signals(str(output), group)
    steps.cluster_duplicates(str(output), index=index)
    for group in plan["groups"]:
        steps.write_verdicts(str(output), group)
    return steps.publish(str(output))


def rows(output: Path, folder: str) -> dict[str, dict[str, Any]]:
    return {
        row["source_id"]: row
        for path in sorted((output / folder).glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    }


def test_passages_are_cut_where_they_repeat_and_stay_where_they_came_first(tmp_path: Path) -> None:
    near = LICENCE.replace("with it.", "with them.")
    texts = {
        "longest": f"{english(1, 30)}\n\n{LICENCE}\n\n{english(2)}\n",
        "exact": f"{english(3)}\n\n{LICENCE}\n\n{english(4)}",
        "near": f"{english(5)}\n\n{near}\n",
        "code": f"{english(6)}\n\n```\n{LICENCE}\n```\n\n{english(7)}",
        "table": f"{english(6, 9)}\n\n| {LICENCE} |\n\n{english(8)}",
        "sentence 1": f"{english(11)} {TAKE} {english(12)}",
        "sentence 2": f"{english(13)} {TAKE}",
        "sentence 3": f"{TAKE} {english(14)}",
        "little left": f"{LICENCE}\n\nA b.",
        "marks": f"{english(15)}\r\n\r\n{LICENCE}\r\n\r\n😀 e\u0301 {english(16)}",
    }
    records = [{"text": text, "id": name} for name, text in texts.items()]
    write_shard(tmp_path / "in" / "a" / "1.jsonl", records[::2])
    write_shard(tmp_path / "in" / "b" / "2.jsonl.zst", records[1::2])
    output = tmp_path / "out"
    run(tmp_path / "in", output, lenient(tmp_path))
    verdicts, kept = rows(output, "verdicts"), rows(output, "curated")
    text = {name: row["text"] for name, row in kept.items()}
    assert text["longest"] == texts["longest"]
    assert text["exact"] == f"{english(3)}\n\n{english(4)}"
    assert text["near"] == f"{english(5)}\n"
    assert text["code"] == texts["code"] and text["table"] == texts["table"]
    assert [TAKE in text[f"sentence {n}"] for n in (1, 2, 3)] == [True, False, False]
    assert text["sentence 2"] == english(13) and text["sentence 3"] == english(14)
    assert text["marks"] == f"{english(15)}\n\n😀 \u00e9 {english(16)}"
    dropped = verdicts["little left"]
    assert dropped["verdict"] == "dropped" and dropped["reasons"][0]["rule"] == "remainder_too_short"
    (span,) = verdicts["near"]["spans"]
    assert (span["rule"], span["level"], span["twin_id"]) == ("paragraph_near", "paragraph", kept["longest"]["doc_id"])
    assert 0.9 <= span["similarity"] < 1
    for name, row in kept.items():
        verdict = verdicts[name]
        assert len(row["text"].encode()) == verdict["raw_bytes"] - verdict["removed_bytes"] + verdict["added_bytes"]
        assert all(span["bytes"] > 0 for span in verdict["spans"])
    report = orjson.loads((output / "report.json").read_bytes())
    assert {rule: cut["spans"] for rule, cut in report["cuts"].items()} == {
        "paragraph_exact": 2,
        "paragraph_near": 1,
        "sentence_repeated": 2,
    }
    assert "cut by paragraph_near: characters" in explain(find_verdicts(str(output), "near")[0])


def test_nothing_is_cut_from_a_corpus_without_duplicates(tmp_path: Path) -> None:
    noise = random.Random(0)
    texts = ["\n\n".join(english(noise.randrange(10**9), 4) for _ in range(6)) for _ in range(60)]
    write_shard(tmp_path / "in" / "a" / "1.jsonl", [{"text": text, "id": str(n)} for n, text in enumerate(texts)])
    published = run(tmp_path / "in", tmp_path / "out", lenient(tmp_path))
    assert published["kept"] == 60
    assert all(not row["spans"] for row in rows(tmp_path / "out", "verdicts").values())


REAL = {
    "en": ("web/c4_en_demo", "papers/pubmed_abstracts", "books/us_presidential_speeches"),
    "zh": ("wiki/zhwiki_paragraphs_cmrc", "books/classical_chinese", "web/cluecorpussmall_zh"),
}


def different(shared_data: Path, names: tuple[str, ...], most: int) -> list[str]:
    """Real texts of which no sentence, and less than half of any paragraph's shingles, came before: found by sets."""
    chosen: list[str] = []
    seen: set[int | str] = set()
    for name in names:
        with gzip.open(shared_data / f"{name}.jsonl.gz") as stream:
            for line in islice(stream, most):
                text = orjson.loads(line)["text"]
                new: set[int | str] = set()
                for start, end in paragraphs(text):
                    own = set(shingles(text[start:end], DedupConfig()).tolist())
                    plain = {" ".join(text[slice(*place)].split()) for place in sentences(text, start, end)}
                    if 2 * len(own & seen) + 2 * len(own & new) > len(own) or plain & seen or plain & new:
                        break
                    new |= own | plain
                else:
                    chosen.append(text)
                    seen |= new
    return chosen


@pytest.mark.parametrize("language", REAL)
def test_nothing_is_removed_at_any_level_from_real_text_without_duplicates(
    shared_data: Path, tmp_path: Path, language: str
) -> None:
    texts = different(shared_data, REAL[language], 120)
    assert len(texts) > 100
    records = [{"text": text, "id": str(n), "kind": "prose"} for n, text in enumerate(texts)]
    write_shard(tmp_path / "in" / "a" / "1.jsonl", records)
    run(tmp_path / "in", tmp_path / "out", lenient(tmp_path))
    report = orjson.loads((tmp_path / "out" / "report.json").read_bytes())
    assert set(report["reasons"]) <= {"language_not_configured", "nothing_left"}
    assert report["cuts"] == {} and report["clusters"]["duplicates"] == {}
    assert report["languages"][language]["kept"] > 90


def test_levels_that_are_not_configured_do_nothing(tmp_path: Path) -> None:
    texts = [f"{english(n)}\n\n{LICENCE}" for n in range(3)]
    write_shard(tmp_path / "in" / "a" / "1.jsonl", [{"text": text, "id": str(n)} for n, text in enumerate(texts)])
    run(tmp_path / "in", tmp_path / "out", lenient(tmp_path, paragraphs=None, sentences=None))
    assert all(LICENCE in row["text"] for row in rows(tmp_path / "out", "curated").values())


def test_neither_the_shards_order_nor_the_parts_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same documents in shards of other names and sizes, in one part and in many."""
    noise = random.Random(3)
    texts = []
    for n in range(40):
        body = [english(n), LICENCE if n % 5 == 0 else english(100 + n, 3), f"{english(n + 50, 3)} {TAKE}"]
        texts += [{"text": "\n\n".join(body), "id": f"{n}"}]
        texts += [{"text": "\n\n".join(body) + " And more.", "id": f"{n} longer"}] * (n % 4 == 0)
        texts += [{"text": "\n\n".join(body), "id": f"{n} copy"}] * (n % 3 == 0)
    outcomes = []
    for shards, worth in ((1, 2_000), (4, 1)):
        monkeypatch.setattr("tasks.curation.dedup.plan.WORTH", worth)
        folder = tmp_path / f"{shards}"
        noise.shuffle(texts)
        for number in range(shards):
            write_shard(folder / "in" / "web" / f"{noise.randrange(10**9)}.jsonl.zst", texts[number::shards])
        run(folder / "in", folder / "out", lenient(folder))
        kept = {name: row["text"] for name, row in rows(folder / "out", "curated").items()}
        lost = {
            name: [(reason["rule"], reason["value"]) for reason in row["reasons"]] + [row["twin_id"]]
            for name, row in rows(folder / "out", "verdicts").items()
        }
        outcomes.append((kept, lost))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) < len(texts) - 15
