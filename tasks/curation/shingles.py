"""Shingle sets and their MinHash signatures.

Broder 1997, "On the resemblance and containment of documents". A shingle is `words` words in scripts with spaces and
`characters` code points in scripts without; in mixed text each position's own script decides. The signatures are
datasketch's (scheme `affine32`), so that datasketch reads and queries them.
"""

from functools import lru_cache

import numpy as np
import xxhash
from datasketch import MinHash, MinHashLSH

from tasks.curation.config import DedupConfig
from tasks.curation.repetition import hash_tokens, ngram_hashes
from tasks.curation.text import is_unspaced, shingle_tokens

SCHEME = "affine32"
_BATCH = 4096  # shingles permuted at a time; bounds memory to batch × permutations × 4 bytes


def shingles(text: str, config: DedupConfig) -> np.ndarray:
    """The sorted set of 64-bit shingle hashes of a text, shape (n,), n ≥ 1.

    A text shorter than one shingle has one: the hash of itself. So short texts are similar only when equal.
    """
    tokens = shingle_tokens(text)
    hashes = hash_tokens(tokens)
    by_words, by_characters = ngram_hashes(hashes, config.words), ngram_hashes(hashes, config.characters)
    unspaced = np.array([is_unspaced(token) for token in tokens], dtype=bool)
    found = np.unique(
        np.concatenate([by_words[~unspaced[: len(by_words)]], by_characters[unspaced[: len(by_characters)]]])
    )
    if len(found):
        return found
    return np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8"))], dtype=np.uint64)


def jaccard(left: np.ndarray, right: np.ndarray) -> float:
    """Exact Jaccard similarity of two sorted shingle sets."""
    shared = len(np.intersect1d(left, right, assume_unique=True))
    return shared / (len(left) + len(right) - shared)


def signature(shingle_set: np.ndarray, config: DedupConfig) -> np.ndarray:
    """MinHash signature, shape (permutations,), uint32."""
    sketch = _empty(config.permutations, config.seed).copy()
    folded = (shingle_set ^ (shingle_set >> np.uint64(32))).astype(np.uint32)
    for start in range(0, len(folded), _BATCH):
        sketch.update_batch(folded[start : start + _BATCH])
    return sketch.hashvalues


@lru_cache(maxsize=4)
def _empty(permutations: int, seed: int) -> MinHash:
    return MinHash(num_perm=permutations, seed=seed, hashfunc=int, scheme=SCHEME)


def as_minhash(values: np.ndarray, config: DedupConfig) -> MinHash:
    """A signature as datasketch's own object."""
    return MinHash(num_perm=config.permutations, seed=config.seed, hashvalues=values, scheme=SCHEME)


def new_index(config: DedupConfig) -> MinHashLSH:
    """An empty LSH index; datasketch picks bands × rows for the threshold, with missed pairs weighing more."""
    bands, rows = _bands(config.threshold, config.permutations, config.recall_weight)
    return MinHashLSH(num_perm=config.permutations, params=(bands, rows))


@lru_cache(maxsize=4)
def _bands(threshold: float, permutations: int, recall_weight: float) -> tuple[int, int]:
    picked = MinHashLSH(threshold=threshold, num_perm=permutations, weights=(1 - recall_weight, recall_weight))
    return picked.b, picked.r
