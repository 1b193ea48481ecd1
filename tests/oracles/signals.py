"""The text signals in plain Python: what the compiled kernels must equal, number for number."""

import logging
import re
import tempfile
from collections import Counter
from functools import cache
from typing import Any

from tasks.curation.text.code_points import PUNCTUATION_MARKS, TERMINAL_MARKS

CODE_LINE = re.compile(
    r"^\s*(?:def |class |import |from \S+ import |#include|#define|function |var |let |const |public |private "
    r"|return\b|if\s*\(|for\s*\(|while\s*\(|@\w+|</?\w+[ >]|\}|elif |else:|try:|except\b)"
    r"|[;{}]\s*$|\)\s*:\s*$|^\s*\w+ = "
)
WORD = re.compile(r"\w+(?:['’\-./:@]+\w+)*|([^\w\s])\1*")
SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s|$)|[。！？…]")
PUNCTUATION = frozenset(PUNCTUATION_MARKS)
BULLETS = ("•", "-", "*", "‣", "·")


def cut_lines(text: str, rules: dict[str, list[str]]) -> list[tuple[int, int, str]]:
    """(start, end, rule) of every line that holds a phrase of a rule; the first such rule counts."""
    found, start = [], 0
    for line in text.splitlines(keepends=True):
        hit = [rule for rule, phrases in rules.items() if any(phrase in line.lower() for phrase in phrases)]
        found += [(start, start + len(line), hit[0])] if hit else []
        start += len(line)
    return found


def looks_like_code(text: str) -> bool:
    lines = [line for line in text[:20_000].split("\n") if line.strip()][:200]
    return len(lines) >= 5 and sum(CODE_LINE.search(line) is not None for line in lines) >= 0.4 * len(lines)


@cache
def segmenter() -> Any:
    """jieba itself, with its cache of its dictionary in a folder of our own."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        jieba.dt.tmp_dir = folder
        jieba.dt.initialize()
    return jieba.dt


def chinese_words(text: str) -> list[str]:
    return [word for word in segmenter().lcut(text, HMM=False) if not word.isspace()]


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def repeated(parts: list[str]) -> tuple[int, int]:
    seen: set[str] = set()
    count = characters = 0
    for part in parts:
        if part in seen:
            count, characters = count + 1, characters + len(part)
        seen.add(part)
    return count, characters


def top_gram(words: list[str], n: int) -> int:
    grams = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
    common = Counter(grams).most_common(1)  # of equally frequent ones, the first met
    return len(common[0][0]) * common[0][1] if common and common[0][1] > 1 else 0


def repeated_grams(words: list[str], n: int) -> int:
    seen: set[tuple[str, ...]] = set()
    position = characters = 0
    while position < len(words) - n + 1:
        gram = tuple(words[position : position + n])
        if gram in seen:
            characters += sum(map(len, gram))
            position += n
        else:
            seen.add(gram)
            position += 1
    return characters


def sentences(line: str) -> int:
    """Pieces between the ends of sentences, of a line, that hold something to read."""
    return sum(any(map(str.isalnum, piece)) for piece in SENTENCE_END.split(line))


def signals(text: str, language: str, stop_words: set[str]) -> dict[str, float]:
    total = len(text)
    words = chinese_words(text) if language == "zh" else [match.group() for match in WORD.finditer(text)]
    plain = [word for word in words if not PUNCTUATION.issuperset(word)]
    lines = [line for line in text.split("\n") if line.strip()]
    stripped = [line.strip() for line in lines]
    by_line = [line for line in text.strip().split("\n") if line]
    paragraphs = [part for part in re.split(r"\n{2,}", text.strip()) if part]
    alphanumeric, spaces = sum(map(str.isalnum, text)), sum(map(str.isspace, text))
    line_repeats, paragraph_repeats = repeated(by_line), repeated(paragraphs)
    out = {
        "characters": total,
        "alphanumeric": share(alphanumeric, total),
        "non_alphanumeric": share(total - alphanumeric - spaces, total),
        "digits": share(sum(map(str.isdigit, text)), total),
        "white_space": share(spaces, total),
        "parentheses": share(sum(text.count(mark) for mark in "()（）"), total),
        "curly_brackets": text.count("{"),
        "duplicate_lines": share(line_repeats[0], len(by_line)),
        "duplicate_line_characters": share(line_repeats[1], total),
        "duplicate_paragraphs": share(paragraph_repeats[0], len(paragraphs)),
        "duplicate_paragraph_characters": share(paragraph_repeats[1], total),
        "repeated_line_characters": share(line_repeats[1], total - text.count("\n")),
        "bullet_lines": share(sum(line.startswith(BULLETS) for line in stripped), len(lines)),
        "ellipsis_lines": share(sum(line.endswith(("...", "…")) for line in stripped), len(lines)),
        "punctuated_lines": share(sum(line.endswith(tuple(TERMINAL_MARKS)) for line in stripped), len(lines)),
        "short_lines": share(sum(len(line) <= 30 for line in lines), len(lines)),
        "sentences": sum(sentences(line) for line in text.split("\n")),
        "long_paragraphs": sum(len(part) >= 200 for part in paragraphs),
        "words": len(plain),
        "mean_word_length": share(sum(map(len, plain)), len(plain)),
        "hashes_per_word": share(text.count("#"), len(words)),
        "ellipses_per_word": share(text.count("...") + text.count("…"), len(words)),
        "words_with_letter": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "newlines_per_word": share(text.count("\n"), len(words)),
        "stop_word_kinds": len(stop_words & {word.lower() for word in words}),
        "mean_line_length": share(sum(map(len, lines)), len(lines)),
        "longest_line": max(map(len, lines), default=0),
    }
    for n in (2, 3, 4):
        out[f"top_{n}_gram_characters"] = share(top_gram(words, n), total)
    for n in range(5, 11):
        out[f"duplicate_{n}_gram_characters"] = share(repeated_grams(words, n), total)
    return {name: float(value) for name, value in out.items()}
