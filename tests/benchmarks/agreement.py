"""Do this project's English rules and datatrove's give the same verdicts on the same real documents?"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.rules import compare
from tasks.curation.text.normalise import normalise
from tests.benchmarks import rival
from tests.benchmarks.corpus import read, write
from tests.benchmarks.parts import measured
from tests.oracles import signals as oracle

SAMPLE = 250
CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")  # which datatrove takes out of lines first
# Their rule → ours.
SAME = {
    "dup_line_frac": ["gopher_duplicate_lines"],
    "dup_para_frac": ["gopher_duplicate_paragraphs"],
    "dup_line_char_frac": ["gopher_duplicate_line_characters"],
    "dup_para_char_frac": ["gopher_duplicate_paragraph_characters"],
    **{f"top_{n}_gram": [f"gopher_top_{n}_gram"] for n in (2, 3, 4)},
    **{f"duplicated_{n}_n_grams": [f"gopher_duplicate_{n}_gram"] for n in range(5, 11)},
    "max_symbol_word_ratio": ["gopher_hashes", "gopher_ellipses"],
    "max_bullet_lines_ratio": ["gopher_bullet_lines"],
    "max_ellipsis_lines_ratio": ["gopher_ellipsis_lines"],
    "max_non_alpha_words_ratio": ["gopher_words_with_letter"],
    "min_stop_words": ["gopher_stop_words"],
    "line_punct_thr": ["fineweb_punctuated_lines"],
    "short_line_thr": ["fineweb_short_lines"],
    "char_duplicates_ratio": ["fineweb_repeated_lines"],
    "new_line_ratio": ["fineweb_newlines"],
    "too_few_sentences": ["c4_sentences"],
    "lorem_ipsum": ["c4_lorem_ipsum"],
    "curly_bracket": ["c4_curly_bracket"],
}


def measure_agreement(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """The share of documents on which each rule's verdict is the same, by number of words and their length by side.

    Twice: both sides with the same words and sentences, which compares the rules; and datatrove with spaCy's, its
    default, which compares tokenizers as well.
    """
    config, records = load_curation("default"), read(english)
    every = max(len(records) // SAMPLE, 1)
    # Normalised, and without white space at the ends of lines: those are not the rules' business.
    sample = [{**record, "text": _plain(record["text"])} for record in records[::every]]
    folder = write(scratch / "sample", sample)
    ours = _verdicts(sample, config)
    default = _compare(sample, ours, rival.run("verdicts", folder, scratch))
    (scratch / "given.json").write_bytes(orjson.dumps(_tokens(sample)))
    same = _compare(sample, ours, rival.run("verdicts", folder, scratch))
    return {"documents": len(sample), "same_words": same, "default": default}


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in normalise(text).split("\n"))


def _verdicts(sample: list[dict[str, str]], config: CurationConfig) -> dict[str, np.ndarray]:
    """Their rule → whether ours drops each document."""
    table, rule_set = measured(sample, config), config.rules["en"]
    failed = {rule: compare(table, rule_set.bounds[rule])[1] for rule in rule_set.bounds}
    table_words, length = rule_set.bounds["gopher_words"], rule_set.bounds["gopher_word_length"]
    words, lengths = table["words"].to_numpy(), table["mean_word_length"].to_numpy()
    ours = {their: np.any([failed[rule] for rule in rules], axis=0) for their, rules in SAME.items()}
    ours |= {"min_doc_words": words < table_words.min, "max_doc_words": words > table_words.max}
    return ours | {"min_avg_word_length": lengths < length.min, "max_avg_word_length": lengths > length.max}


def _tokens(sample: list[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Words of every text, and the number of sentences of every line, as the oracle's plain Python has them."""
    texts = [record["text"] for record in sample]
    lines = {CITATION.sub("", line.strip()) for text in texts for line in text.splitlines()}
    words = {text: [match.group() for match in oracle.WORD.finditer(text)] for text in texts}
    return {"words": words, "sentences": {line: oracle.sentences(line) for line in lines}}


def _compare(sample: list[dict[str, str]], ours: dict[str, np.ndarray], theirs: dict[str, Any]) -> dict[str, Any]:
    agreement, differ = {}, {}
    for rule, verdict in ours.items():
        other = [rule in theirs["failed"][record["id"]] for record in sample]
        apart = [record["id"] for record, here, there in zip(sample, verdict, other, strict=True) if here != there]
        agreement[rule] = 1 - len(apart) / len(sample)
        if apart:
            differ[rule] = apart
    return {"agreement": agreement, "differ": differ}
