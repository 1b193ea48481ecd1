"""datatrove's half of the benchmark. Runs in the benchmark's own environment and imports nothing of this project.

    python datatrove_side.py PART CORPUS SCRATCH    PART: signatures, rules, verdicts, curation

CORPUS is a folder of `.jsonl.zst` shards. Prints one JSON object. Times are taken warm, without imports: CPU seconds of
this process, so that a neighbour's work on a shared machine does not count.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers import JsonlWriter

CONFIG = MinhashConfig()  # its defaults: 5 words, 14 × 8
STOP_CHARS = tuple(".!?\"'…。！？”’」』；;")  # ends of a line here, closing quotes too


def filters() -> list:
    """Gopher + C4 + FineWeb as FineWeb ran them: lines without terminal punctuation stay."""
    c4 = C4QualityFilter(filter_no_terminal_punct=False)
    return [GopherRepetitionFilter(), GopherQualityFilter(), c4, FineWebQualityFilter()]


def reader(folder: Path) -> JsonlReader:
    return JsonlReader(str(folder), glob_pattern="*.jsonl.zst", compression="zstd")


def timed(work: Callable[[], object]) -> tuple[float, object]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def signatures(corpus: Path, scratch: Path) -> dict:
    documents = list(reader(corpus).run())
    step = MinhashDedupSignature(str(scratch / "warm"), config=CONFIG)
    step.get_signature(step.get_shingles("one two three four five six seven"))

    def work() -> int:
        return len([step.get_signature(step.get_shingles(document.text)) for document in documents])

    seconds, count = timed(work)
    return {"seconds": seconds, "documents": count, "bytes": size(documents)}


def size(documents: list[Document]) -> int:
    return sum(len(document.text.encode()) for document in documents)


def rules(corpus: Path, scratch: Path) -> dict:
    documents = list(reader(corpus).run())
    total, chain = size(documents), filters()
    warm = Document(text="Warm up, please. " * 20, id="warm")
    for step in chain:
        step.filter(warm)

    def work() -> int:
        kept = 0
        for document in documents:
            kept += all(passed(step.filter(document)) for step in chain)
        return kept

    seconds, kept = timed(work)
    return {"seconds": seconds, "documents": len(documents), "bytes": total, "kept": kept}


def passed(result: object) -> bool:
    return result is True or (isinstance(result, tuple) and bool(result[0]))


def verdicts(corpus: Path, scratch: Path) -> dict:
    """Each rule's own verdict on each document: one filter a rule, with all others switched off."""
    repetition = {"dup_line_frac": 0.3, "dup_para_frac": 0.3, "dup_line_char_frac": 0.2, "dup_para_char_frac": 0.2}
    none = {**dict.fromkeys(repetition), "top_n_grams": (), "dup_n_grams": ()}
    alone = {name: GopherRepetitionFilter(**{**none, name: value}) for name, value in repetition.items()}
    for n, limit in ((2, 0.2), (3, 0.18), (4, 0.16)):
        alone[f"top_{n}_gram"] = GopherRepetitionFilter(**{**none, "top_n_grams": ((n, limit),)})
    for n, limit in ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)):
        alone[f"duplicated_{n}_n_grams"] = GopherRepetitionFilter(**{**none, "dup_n_grams": ((n, limit),)})
    limits = {
        "min_doc_words": 50,
        "max_doc_words": 100000,
        "min_avg_word_length": 3,
        "max_avg_word_length": 10,
        "max_symbol_word_ratio": 0.1,
        "max_bullet_lines_ratio": 0.9,
        "max_ellipsis_lines_ratio": 0.3,
        "max_non_alpha_words_ratio": 0.8,
        "min_stop_words": 2,
    }
    for name, value in limits.items():
        alone[name] = GopherQualityFilter(**{**dict.fromkeys(limits), name: value})
    off = {"line_punct_thr": 0.0, "short_line_thr": 1.0, "char_duplicates_ratio": 1.0, "new_line_ratio": 1e9}
    for name, value in {
        "line_punct_thr": 0.12, "short_line_thr": 0.67, "char_duplicates_ratio": 0.01, "new_line_ratio": 0.3
    }.items():
        alone[name] = FineWebQualityFilter(**{**off, name: value}, stop_chars=STOP_CHARS)
    c4: dict[str, int] = {"filter_no_terminal_punct": False, "filter_lorem_ipsum": False, "filter_curly_bracket": False}
    c4 |= {"min_num_sentences": -1, "min_words_per_line": -1}  # off
    alone["too_few_sentences"] = C4QualityFilter(**{**c4, "min_num_sentences": 5})
    alone["lorem_ipsum"] = C4QualityFilter(**{**c4, "filter_lorem_ipsum": True})
    alone["curly_bracket"] = C4QualityFilter(**{**c4, "filter_curly_bracket": True})
    given = scratch / "given.json"
    if given.exists():
        take_words(json.loads(given.read_text()))
    else:
        remember_words()
    found: dict[str, list[str]] = {}
    for document in reader(corpus).run():
        failed = []
        for name, step in alone.items():
            copy = Document(text=document.text, id=document.id)  # C4 rewrites the text that it is given
            if not passed(step.filter(copy)):
                failed.append(name)
        found[document.id] = failed
    return {"rules": list(alone), "failed": found}


def take_words(given: dict[str, dict]) -> None:
    """This project's words of each text, and the number of sentences in each line, in place of spaCy's."""
    from datatrove.pipeline.filters import c4_filters

    use_words(lambda text, *_: given["words"][text])
    c4_filters.split_into_sentences = lambda line, *_: [line] * given["sentences"][line]


def use_words(split: Callable) -> None:
    from datatrove.pipeline.filters import fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter

    for module in (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter):
        module.split_into_words = split


def remember_words() -> None:
    """Splitting takes most of the time, and thirty filters ask for the words of the same text."""
    from functools import lru_cache

    from datatrove.utils.text import split_into_words

    use_words(lru_cache(maxsize=4)(split_into_words))


def curation(corpus: Path, scratch: Path) -> dict:
    """Read → filters → signatures → buckets → clusters → remove → write, one worker."""
    shards = len(list(corpus.glob("*.jsonl.zst")))
    GopherQualityFilter().filter(Document(text="Warm up, please.", id="warm"))

    def at(name: str) -> str:
        return str(scratch / name)

    def run(name: str, tasks: int, *pipeline: object) -> None:
        LocalPipelineExecutor(list(pipeline), tasks=tasks, workers=1, logging_dir=at(f"log-{name}")).run()

    def read_kept() -> JsonlReader:
        return JsonlReader(at("kept"), compression="gzip")

    def work() -> None:
        run("filter", shards, reader(corpus), *filters(), JsonlWriter(at("kept")))
        run("signatures", shards, read_kept(), MinhashDedupSignature(at("signatures"), config=CONFIG))
        run("buckets", CONFIG.num_buckets, MinhashDedupBuckets(at("signatures"), at("buckets"), config=CONFIG))
        run("cluster", 1, MinhashDedupCluster(at("buckets"), at("remove"), config=CONFIG))
        run("remove", shards, read_kept(), MinhashDedupFilter(at("remove")), JsonlWriter(at("out")))

    seconds, _ = timed(work)
    documents = list(reader(corpus).run())
    written = sum(1 for _ in JsonlReader(at("out")).run())
    return {"seconds": seconds, "documents": len(documents), "bytes": size(documents), "kept": written}


if __name__ == "__main__":
    part, corpus, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    parts = {"signatures": signatures, "rules": rules, "verdicts": verdicts, "curation": curation}
    print(json.dumps(parts[part](corpus, scratch)))
