"""Signals of small texts worked out by hand, and over arbitrary Unicode."""

import math
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.lexicon import lexicon_hits
from tasks.curation.signals import NAMES, cut, measure
from tasks.curation.text import looks_like_code, normalise
from tests.oracles import signals as oracle

CONFIG = load_curation("default")


def values(text: str, kind: str | None = "prose", config: CurationConfig = CONFIG) -> dict[str, float]:
    return measure(text, kind, config).values


def test_by_hand() -> None:
    text = "- One two.\n- Three #four…\n\nshort\nshort\n(See https://a.b/c) 12 ...\n"
    found = values(text)
    assert found["characters"] == len(text)
    assert found["bullet_lines"] == pytest.approx(2 / 5)
    assert found["ellipsis_lines"] == pytest.approx(2 / 5)
    assert found["duplicate_lines"] == pytest.approx(1 / 5)
    assert found["duplicate_line_characters"] == pytest.approx(5 / len(text))
    assert found["punctuated_lines"] == pytest.approx(3 / 5)
    assert found["short_lines"] == 1
    assert found["http_links"] == 1
    assert found["url_characters"] == pytest.approx(len("https://a.b/c") / len(text))
    assert found["parentheses"] == pytest.approx(2 / len(text))
    assert found["digits"] == pytest.approx(2 / len(text))


def test_chinese_words_are_segmented() -> None:
    measured = measure("今天天气很好，我们去公园散步。" * 10, None, CONFIG)
    assert measured.language == "zh"
    assert measured.values["words"] == pytest.approx(80, abs=20)
    assert 1 < measured.values["mean_word_length"] < 3


def test_normalisation_is_nfc_and_not_nfkc() -> None:
    assert normalise("\ufeffe\u0301\r\nﬁ①\r") == "é\nﬁ①\n"


def test_lines_are_cut_with_their_spans() -> None:
    text = "First line.\nPlease read our Privacy Policy today.\nEnable JavaScript to go on.\nLast line."
    measured = measure(text, "prose", CONFIG)
    if measured.language != "en":
        pytest.fail(f"expected English, found {measured.language}")
    assert [span.rule for span in measured.spans] == ["c4_policy_line", "c4_javascript_line"]
    assert cut(measured.text, measured.spans) == "First line.\nLast line."


def test_code_is_told_from_prose() -> None:
    assert looks_like_code("import os\n\ndef f(x):\n    return x\n\nclass A:\n    y = 1\n")
    assert not looks_like_code("A sentence here.\n" * 20)
    assert measure("int main() {\n  return 0;\n}\nvoid f() {\n  x = 1;\n}\n", None, CONFIG).kind == "code"


def test_lexicon_is_whole_words_in_english_and_exempts_medicine_in_chinese() -> None:
    assert lexicon_hits("Scunthorpe and classic cocktails", "en", ())[0] == 0
    assert lexicon_hits("what a fuck", "en", ()) == (1, 4)
    allow = tuple(CONFIG.rules["zh"].lexicon_allow)
    assert lexicon_hits("阴道炎是妇科常见病，乳房检查应每年进行。", "zh", allow) == (0, 0)
    assert lexicon_hits("版本13.点", "zh", allow) == (0, 0)


PIECES = ["the", "The", "a.b", "don't", "-", "...", "…", "#", "\n", "\n\n", " ", "。", "数据", "的", '."', "²", "İ"]
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=120).map("".join),
    st.lists(st.sampled_from(["a b c", "a b", "\n", " x. ", "\n\n", "• y…", "c d e f g h"]), max_size=60).map(" ".join),
)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_kernels_equal_plain_python(text: str) -> None:
    measured = measure(text, "prose", CONFIG)
    rules = CONFIG.rule_set(measured.language, "prose")
    expected = oracle.signals(measured.text, measured.language, set(rules.stop_words if rules else []))
    assert {name: measured.values[name] for name in expected} == expected


def test_kernels_equal_plain_python_on_real_documents(shared_data: Path) -> None:
    from tasks.corpus.shards import Row, read_shard
    from tasks.corpus.storage import LocalStore

    for key in ("wiki/enwiki_demo.jsonl.gz", "wiki/zhwiki_paragraphs_cmrc.jsonl.gz", "code/permissive_source.jsonl.gz"):
        rows = [item for item in read_shard(LocalStore(shared_data), key) if isinstance(item, Row)][:40]
        for item in rows:
            measured = measure(item.record["text"][:30_000], "prose", CONFIG)
            rules = CONFIG.rule_set(measured.language, "prose")
            expected = oracle.signals(measured.text, measured.language, set(rules.stop_words if rules else []))
            assert {name: measured.values[name] for name in expected} == expected, f"{key}, row {item.index}"


@settings(max_examples=80, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400))
def test_any_text_has_finite_signals(text: str) -> None:
    measured = measure(text, None, CONFIG)
    assert set(measured.values) == NAMES
    assert all(math.isfinite(value) for value in measured.values.values())
    assert unicodedata.is_normalized("NFC", measured.text)
