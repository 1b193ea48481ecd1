"""Passages: what a paragraph and a sentence is, what is never touched, and how the text reads after a cut."""

import gzip
import re
import unicodedata
from itertools import islice, pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.curation.dedup.passages import Passage, cuts, find_passages, without
from tasks.curation.text.code_points import code_points
from tests.oracles.passages import long_enough, paragraphs, sentences, tokens

GUARDED = """First one here. Second!

    indented(code)
\ttabbed(code)

| a | b |
|---|---|
| 1 | 2 |

name\tcount\tshare

```python
print("fenced")

print("after a blank line")
```

<table>
<tr><td>cell</td></tr>
</table>

\\begin{verbatim}
as it is
\\end{verbatim}

Last one."""


def texts_of(text: str, places: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in places]


def test_code_and_tables_are_no_paragraphs() -> None:
    assert texts_of(GUARDED, paragraphs(GUARDED)) == ["First one here. Second!", "Last one."]
    assert paragraphs("```\nnever closed. Really.\n\nStill code.") == []


def test_paragraphs_are_blocks_or_else_lines() -> None:
    assert texts_of("a b\nc d\n\n  e f \n", paragraphs("a b\nc d\n\n  e f \n")) == ["a b\nc d", "e f"]
    assert texts_of("a b\nc d\n", paragraphs("a b\nc d\n")) == ["a b", "c d"]
    assert texts_of("a\nb\n \t\nc", paragraphs("a\nb\n \t\nc")) == ["a\nb", "c"]
    assert paragraphs(" \n\n ") == paragraphs("") == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One is. Two is!  Three?", ["One is.", "Two is!", "Three?"]),
        ("Version 1.2 of a.b is out. \"Quoted.\" Yes", ["Version 1.2 of a.b is out.", '"Quoted."', "Yes"]),
        ("今天很好。明天“也好。”后天呢？好！", ["今天很好。", "明天“也好。”", "后天呢？", "好！"]),
        ("wrapped over\ntwo lines. Next", ["wrapped over\ntwo lines.", "Next"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert texts_of(text, sentences(text, 0, len(text))) == expected


def rest_of(text: str, *gone: str) -> str:
    passages = [Passage(text.index(piece), text.index(piece) + len(piece), "r", "paragraph") for piece in gone]
    return without(text, cuts(text, passages))


@pytest.mark.parametrize(
    "text, gone, rest",
    [
        ("A b. C d. E f.", ["C d."], "A b. E f."),
        ("A b. C d. E f.", ["A b."], "C d. E f."),
        ("A b. C d. E f.", ["E f."], "A b. C d."),
        ("A b. C d. E f.", ["A b.", "C d."], "E f."),
        ("今。明。后。", ["明。"], "今。后。"),
        ("A.\n\nB.\n\nC.\n", ["B."], "A.\n\nC.\n"),
        ("A.\n\nB.\n\nC.\n", ["C."], "A.\n\nB.\n"),
        ("A.\n\nB.\n\nC.\n", ["A."], "B.\n\nC.\n"),
        ("A.\n\nB.\n\nC.\n", ["A.", "C."], "B.\n"),
        ("A.\n\nB. C.\n\nD.", ["B.", "C."], "A.\n\nD."),
        ("A. B\nb.\nC.", ["B\nb."], "A.\nC."),
        ("A.\nB\nb. C.", ["B\nb."], "A.\nC."),
        ("A.\n\nB.\n\n    code\n", ["B."], "A.\n\n    code\n"),
        ("A.\n\nB.", ["A.", "B."], ""),
    ],
)
def test_the_rest_reads_as_if_it_had_never_been_there(text: str, gone: list[str], rest: str) -> None:
    assert rest_of(text, *gone) == rest


def test_tokens() -> None:
    assert [int(tokens(text)[-1]) for text in ("one two 三四 five's", "", "—!")] == [6, 0, 0]
    assert tokens("ab c").tolist() == [0, 1, 1, 1, 2]
    assert long_enough([(0, 2), (0, 4)], tokens("ab c"), 2) == [(0, 4)]


TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    st.lists(
        st.sampled_from(
            ["A b.", "今天。", " ", "\n", "\n\n", "```\n", "    x = 1\n", "| a | b |\n", "e\u0301!", "\u3000", "?"]
        )
    ).map("".join),
)


@settings(max_examples=300, deadline=None)
@given(TEXT, st.data())
def test_any_cut_removes_what_it_says_and_nothing_that_can_be_read_besides(text: str, data: st.DataObject) -> None:
    text = unicodedata.normalize("NFC", text)
    places = [place for start, end in paragraphs(text) for place in [(start, end), *sentences(text, start, end)]]
    assert all(text[start:end] == text[start:end].strip() and start < end for start, end in places)
    chosen = data.draw(st.lists(st.sampled_from(places), unique=True)) if places else []
    spans = cuts(text, [Passage(start, end, "r", "paragraph") for start, end in chosen])
    assert all(a.end <= b.start for a, b in pairwise(spans))
    rest = without(text, spans)
    assert len(rest) == len(text) - sum(span.end - span.start for span in spans)
    covered = {n for start, end in chosen for n in range(start, end)}
    visible = "".join(c for n, c in enumerate(text) if n not in covered and not c.isspace())
    assert "".join(rest.split()) == visible
    assert rest.encode().decode() == rest
    if chosen and text == text.strip():
        assert rest == rest.rstrip() and not rest.startswith("\n")
        assert not re.search(r"[ \t]\n", rest) or re.search(r"[ \t]\n", text)
    code = [line for line in text.split("\n") if line.startswith("    ") and line.strip()]
    assert all(line in rest.split("\n") for line in code)


@settings(max_examples=400, deadline=None)
@given(TEXT, st.integers(0, 4), st.integers(0, 4))
def test_the_kernel_equals_plain_python(text: str, paragraph: int, sentence: int) -> None:
    compare(text, paragraph, sentence)


def compare(text: str, paragraph: int, sentence: int) -> None:
    counts, found = tokens(text), find_passages(text, code_points(text), paragraph, sentence)
    every = paragraphs(text)
    assert found.paragraphs.tolist() == [list(place) for place in long_enough(every, counts, paragraph)]
    within = [place for start, end in long_enough(every, counts, sentence) for place in sentences(text, start, end)]
    assert found.sentences.tolist() == [list(place) for place in long_enough(within, counts, sentence)]
    for places, hashes in ((found.paragraphs, found.identities[:, 0]), (found.sentences, found.hashes)):
        plain = [" ".join(text[start:end].split()) for start, end in places.tolist()]
        assert len(set(zip(plain, hashes.tolist(), strict=True))) == len(set(plain)) == len(set(hashes.tolist()))


def test_the_kernel_equals_plain_python_on_real_documents(shared_data: Path) -> None:
    for name in ("web/article_extractor_variants", "wiki/zhwiki_paragraphs_cmrc", "code/permissive_source"):
        with gzip.open(shared_data / f"{name}.jsonl.gz") as stream:
            for line in islice(stream, 0, None, 20):
                compare(orjson.loads(line)["text"], 30, 10)
