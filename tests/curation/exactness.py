"""How exact near-duplicate search is, by Jaccard, on real text with seeded edits: `python -m tests.curation.exactness`.

Every pair of texts is compared exactly. Recall of a bin is the share of its pairs that the search takes for candidates;
what happens then is decided on the texts themselves, so precision is that of the documents dropped.
"""

import gzip
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import orjson
from distributed import Client

from tasks.curation.config import DedupConfig
from tasks.curation.dedup.shingles import bands_and_rows, jaccard, shingles, signature
from tasks.curation.dedup.units import band_hashes
from tests.conftest import SHARED_DATA
from tests.curation.clustering import cluster_texts

CONFIG = DedupConfig()
SOURCES = {
    "English": ("papers/pubmed_abstracts", "web/c4_en_demo", "wiki/enwiki_demo"),
    "Chinese": ("wiki/zhwiki_paragraphs_cmrc", "papers/csl_zh_abstracts"),
}
STEP = 0.05
LOWEST = 0.5
VARIANTS = 8
PARTS = 3


@dataclass(frozen=True)
class Measured:
    """Of one language: pairs and found pairs by bin (its lower end in percent), and what the whole search dropped."""

    texts: int
    pairs: Counter[int]
    found: Counter[int]
    dropped: int
    rightly: int
    should: int  # documents that an exact walk over all pairs drops
    agreed: int  # of those, dropped by the search

    def recall(self, low: int, high: int = 101) -> float:
        bins = [value for value in self.pairs if low <= value < high]
        return sum(self.found[value] for value in bins) / max(sum(self.pairs[value] for value in bins), 1)


def real_texts(folder: Path, language: str, count: int) -> list[list[str]]:
    """Texts as lists of words, or of characters for Chinese, of 80 to 600 units."""
    found = []
    for source in SOURCES[language]:
        with gzip.open(folder / f"{source}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = orjson.loads(line)
                text = record.get("text") or record["abstract"]
                units = list(text) if language == "Chinese" else text.split(" ")
                if len(units) >= 80:
                    found.append(units[:600])
    random.Random(1).shuffle(found)
    return found[:count]


def edited(units: list[str], others: list[str], share: float, noise: random.Random) -> list[str]:
    """Substitutions, deletions and insertions, from other texts, at a share of the positions."""
    out = []
    for unit in units:
        if noise.random() >= share:
            out.append(unit)
            continue
        kind = noise.randrange(3)
        out += [noise.choice(others)] if kind == 0 else [] if kind == 1 else [unit, noise.choice(others)]
    return out


def with_edits(bases: list[list[str]], language: str) -> list[str]:
    """Each text with edited copies, from one edit to so many that half of the shingles are gone."""
    noise, glue = random.Random(2), "" if language == "Chinese" else " "
    length = CONFIG.characters if language == "Chinese" else CONFIG.words
    others = [unit for base in bases[:50] for unit in base]
    texts = []
    for base in bases:
        texts.append(glue.join(base))
        for _ in range(VARIANTS - 1):
            kept = 2 * (j := noise.uniform(0.55, 0.995)) / (1 + j)  # share of shingles that must stay for this Jaccard
            texts.append(glue.join(edited(base, others, 1 - kept ** (1 / length), noise)))
    return texts


def measure(texts: list[str], client: Client, folder: Path) -> Measured:
    """Exact Jaccard of every pair that shares a shingle, beside what the search finds and drops."""
    sets = [shingles(text, CONFIG) for text in texts]
    holders: dict[int, list[int]] = {}
    for number, values in enumerate(sets):
        for value in values.tolist():
            holders.setdefault(value, []).append(number)
    together = {pair for numbers in holders.values() for pair in combinations(numbers, 2)}
    exact = {pair: jaccard(sets[pair[0]], sets[pair[1]]) for pair in together}
    hashes = band_hashes(np.array([signature(text, CONFIG) for text in texts]), *bands_and_rows(CONFIG))
    pairs: Counter[int] = Counter()
    found: Counter[int] = Counter()
    for (left, right), similarity in exact.items():
        if similarity >= LOWEST:
            low = min(int(similarity / STEP + 1e-9), round(1 / STEP) - 1) * round(100 * STEP)
            pairs[low] += 1
            found[low] += bool((hashes[left] == hashes[right]).any())
    lost = cluster_texts(client, folder, texts, parts=PARTS)
    met = [(min(item.number, item.twin), max(item.number, item.twin)) for item in lost]
    rightly = sum(exact[pair] >= CONFIG.threshold for pair in met)
    should = _walk(texts, exact)
    agreed = len(should & {item.number for item in lost})
    return Measured(len(texts), pairs, found, len(lost), rightly, len(should), agreed)


def _walk(texts: list[str], exact: dict[tuple[int, int], float]) -> set[int]:
    """Numbers that are dropped when every pair is known: the same order, no signatures."""
    from tasks.corpus.document import doc_id

    similar: dict[int, list[int]] = {}
    for (left, right), similarity in exact.items():
        if similarity >= CONFIG.threshold:
            similar.setdefault(left, []).append(right)
            similar.setdefault(right, []).append(left)
    kept: set[int] = set()
    dropped: set[int] = set()
    order = sorted(range(len(texts)), key=lambda n: (-len(texts[n]), doc_id(texts[n]), n % PARTS, n // PARTS))
    for number in order:
        (dropped if kept & set(similar.get(number, [])) else kept).add(number)
    return dropped


def main() -> None:
    """Print the table of the documentation."""
    bands, rows = bands_and_rows(CONFIG)
    with (
        tempfile.TemporaryDirectory() as folder,
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client,
    ):
        texts = {language: with_edits(real_texts(SHARED_DATA, language, 400), language) for language in SOURCES}
        results = {language: measure(texts[language], client, Path(folder, language)) for language in SOURCES}
    print("| Jaccard | expected | " + " | ".join(f"{language}: pairs | recall" for language in SOURCES) + " |")
    print("| --- | --- |" + " --- | --- |" * len(SOURCES))
    for low in range(round(100 * LOWEST), 100, round(100 * STEP)):
        cells = [f"{r.pairs[low]:,} | {r.recall(low, low + 1):.4f}" for r in results.values()]
        expected = [1 - (1 - (low / 100 + part * STEP) ** rows) ** bands for part in (0, 1)]
        print(f"| {low / 100:.2f}–{low / 100 + STEP:.2f} | {expected[0]:.3f}–{expected[1]:.3f} | {' | '.join(cells)} |")
    for language, result in results.items():
        print(
            f"{language}: {result.texts} texts; recall at Jaccard ≥ 0.8 {result.recall(80):.4f}; of {result.dropped} "
            f"documents dropped {result.rightly} are similar to their survivor; of {result.should} that a walk over "
            f"all exact pairs drops, {result.agreed} were"
        )


if __name__ == "__main__":
    main()
