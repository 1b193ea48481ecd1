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
from tasks.curation.dedup.shingle_kernels import minhash, shared_values, shingle_hashes
from tasks.curation.text.code_points import classes, folded_points

SCHEME = "affine32"


def shingles(text: str, config: DedupConfig) -> np.ndarray:
    """The sorted set of 64-bit shingle hashes of a text, shape (n,), n ≥ 1."""
    found = np.sort(_hashes(text, config))
    return found[np.concatenate([[True], found[1:] != found[:-1]])]


def signature(text: str, config: DedupConfig) -> np.ndarray:
    """MinHash signature of a text's shingle set, shape (permutations,), uint32."""
    factors, offsets = _permutations(config.permutations, config.seed)
    return minhash(_hashes(text, config), factors, offsets)


def signatures(text: str, places: np.ndarray, config: DedupConfig) -> np.ndarray:
    """MinHash signatures of pieces of a text at `places`, shape (n, 2), in code points: shape (n, permutations).

    Each is what `signature` gives for the piece alone.
    """
    out = np.empty((len(places), config.permutations), dtype=np.uint32)
    points = folded_points(text) if len(places) else None
    for number, (start, end) in enumerate(places.tolist()):
        if points is None or len(points) != len(text):  # a letter that folds to several has moved the places
            out[number] = signature(text[start:end], config)
            continue
        found = shingle_hashes(points[start:end], classes(), config.words, config.characters)
        if len(found):
            out[number] = minhash(found, *_permutations(config.permutations, config.seed))
        else:
            out[number] = signature(text[start:end], config)
    return out


def _hashes(text: str, config: DedupConfig) -> np.ndarray:
    """Shingle hashes, case-folded, repeats included.

    A text shorter than one shingle has one: the hash of itself. So short texts are similar only when equal.
    """
    found = shingle_hashes(folded_points(text), classes(), config.words, config.characters)
    return found if len(found) else np.array([xxhash.xxh3_64_intdigest(text.encode("utf-8"))], dtype=np.uint64)


def jaccard(left: np.ndarray, right: np.ndarray) -> float:
    """Exact Jaccard similarity of two sorted shingle sets."""
    shared = shared_values(left, right)
    return shared / (len(left) + len(right) - shared)


@lru_cache(maxsize=4)
def _permutations(permutations: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """datasketch's own factors and offsets for a seed."""
    factors, offsets = MinHash(num_perm=permutations, seed=seed, scheme=SCHEME).permutations
    return np.ascontiguousarray(factors), np.ascontiguousarray(offsets)


def as_minhash(values: np.ndarray, config: DedupConfig) -> MinHash:
    """A signature as datasketch's own object."""
    return MinHash(num_perm=config.permutations, seed=config.seed, hashvalues=values, scheme=SCHEME)


def new_index(config: DedupConfig) -> MinHashLSH:
    """An empty LSH index of datasketch's."""
    return MinHashLSH(num_perm=config.permutations, params=bands_and_rows(config))


def bands_and_rows(config: DedupConfig) -> tuple[int, int]:
    """Bands × rows as datasketch picks them for the threshold, with missed pairs weighing more."""
    return _bands(config.threshold, config.permutations, config.recall_weight)


@lru_cache(maxsize=8)
def _bands(threshold: float, permutations: int, recall_weight: float) -> tuple[int, int]:
    picked = MinHashLSH(threshold=threshold, num_perm=permutations, weights=(1 - recall_weight, recall_weight))
    return picked.b, picked.r
