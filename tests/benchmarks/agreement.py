"""Do this project's English rules and datatrove's give the same verdicts on the same real documents?"""

from pathlib import Path
from typing import Any

import numpy as np

from tasks.curation.config import load_curation
from tasks.curation.rules import compare
from tasks.curation.text.normalise import normalise
from tests.benchmarks import rival
from tests.benchmarks.corpus import read, write
from tests.benchmarks.parts import measured

SAMPLE = 250
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
    """The share of documents on which each rule's verdict is the same; number of words and their length by side."""
    config, records = load_curation("default"), read(english)
    every = max(len(records) // SAMPLE, 1)
    # Normalised first: else line ends and byte-order marks would be compared, which are not the rules' business.
    sample = [{**record, "text": normalise(record["text"])} for record in records[::every]]
    theirs = rival.run("verdicts", write(scratch / "sample", sample), scratch)
    table, rule_set = measured(sample, config), config.rules["en"]
    failed = {rule: compare(table, rule_set.bounds[rule])[1] for rule in rule_set.bounds}
    table_words, length = rule_set.bounds["gopher_words"], rule_set.bounds["gopher_word_length"]
    words, lengths = table["words"].to_numpy(), table["mean_word_length"].to_numpy()
    ours = {their: np.any([failed[rule] for rule in rules], axis=0) for their, rules in SAME.items()}
    ours |= {"min_doc_words": words < table_words.min, "max_doc_words": words > table_words.max}
    ours |= {"min_avg_word_length": lengths < length.min, "max_avg_word_length": lengths > length.max}
    agreement, differ = {}, {}
    for rule, verdict in ours.items():
        other = [rule in theirs["failed"][record["id"]] for record in sample]
        apart = [record["id"] for record, here, there in zip(sample, verdict, other, strict=True) if here != there]
        agreement[rule] = 1 - len(apart) / len(sample)
        if apart:
            differ[rule] = apart
    return {"documents": len(sample), "agreement": agreement, "differ": differ}
