"""Signals of small texts worked out by hand, and over arbitrary Unicode."""

import math
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import LocalStore
from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.signals import NAMES, _cut_lines, _lower_case, cut, measure
from tasks.curation.text.chinese import split_chinese
from tasks.curation.text.code_points import classes, code_points, folded_points
from tasks.curation.text.lexicon import _folded as folded_utf8
from tasks.curation.text.lexicon import lexicon_hits
from tasks.curation.text.normalise import normalise
from tasks.curation.text.program_text import looks_like_code
from tests.oracles import signals as oracle

CONFIG = load_curation("default")


def values(text: str, kind: str | None = "prose", config: CurationConfig = CONFIG) -> dict[str, float]:
    return measure(text, kind, config).values


def code(text: str) -> bool:
    return looks_like_code(code_points(text), classes())


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


LINES = ["JavaScript", "Terms of Use", "terms of", " use", "uses ", "cookies", "\n", "\u2028", "é", "中", "İ", "\u212a"]


@given(st.lists(st.sampled_from(LINES)).map("".join))
def test_cut_lines_equal_to_plain_python(text: str) -> None:
    rules = CONFIG.rules["en"]
    found = [(span.start, span.end, span.rule) for span in _cut_lines(text, _lower_case(text), rules)]
    assert found == oracle.cut_lines(text, rules.cut_lines)


def test_lines_are_cut_with_their_spans() -> None:
    text = "First line.\nPlease read our Privacy Policy today.\nEnable JavaScript to go on.\nLast line."
    measured = measure(text, "prose", CONFIG)
    if measured.language != "en":
        pytest.fail(f"expected English, found {measured.language}")
    assert [span.rule for span in measured.spans] == ["c4_policy_line", "c4_javascript_line"]
    assert cut(measured.text, measured.spans) == "First line.\nLast line."


def test_code_is_told_from_prose() -> None:
    assert code("import os\n\ndef f(x):\n    return x\n\nclass A:\n    y = 1\n")
    assert not code("A sentence here.\n" * 20)
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


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in zip(*split_chinese(code_points(text), classes()), strict=True)]


HAN = st.lists(
    st.sampled_from(
        [*"今天我们讨论研究生命的起源中华人民共和国万里长江了在是和aA1.%-_+#& \r\n，。㐀龦𠀀ñ", "T恤", "B超", "卡拉OK"]
    ),
    max_size=80,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(HAN, TEXTS))
def test_chinese_words_are_those_of_jieba(text: str) -> None:
    assert split(text) == oracle.chinese_words(text)


def test_chinese_words_are_those_of_jieba_on_real_documents(shared_data: Path) -> None:
    checked = 0
    for key in (
        "wiki/zhwiki_paragraphs_cmrc.jsonl.gz",
        "books/classical_chinese.jsonl.gz",
        "web/stack_exchange_forum.jsonl.gz",
    ):
        for item in list(read_shard(LocalStore(shared_data), key))[:60]:
            assert isinstance(item, Row)
            text = item.record["text"][:20_000]
            assert split(text) == oracle.chinese_words(text), f"{key}, row {item.index}"
            checked += 1
    assert checked > 100


CODE = st.lists(
    st.sampled_from(
        [
            "def ",
            "if (",
            "if x",
            "return",
            "returns",
            "from a import b",
            "from  import",
            "<a>",
            "</b ",
            "<-",
            "@x",
            "x = 1",
            "x =",
            "  ",
            "\t",
            ";",
            "};",
            "):",
            ") : ",
            "a b",
            "\x0c",
            "else:",
            "except",
            "exceptx",
            "#define",
        ]
    ),
    max_size=4,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(CODE, max_size=12).map("\n".join), TEXTS))
def test_code_is_told_as_by_regular_expressions(text: str) -> None:
    # Ten times over, so that there are lines enough to judge by.
    for repeated in (text, f"{text}\n" * 10):
        assert code(repeated) == oracle.looks_like_code(repeated)


@settings(max_examples=300, deadline=None)
@given(st.one_of(TEXTS, st.text(st.sampled_from("aBßẞﬁİıſKΣςσ Ǆǅǆ𐐀"), max_size=30)))
def test_case_folding_is_pythons(text: str) -> None:
    assert folded_points(text).tolist() == list(map(ord, text.casefold()))
    assert folded_utf8(text) == text.casefold().encode()
