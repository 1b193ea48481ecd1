"""The hot loops over code points, compiled by Numba: tokens, shingle hashes, MinHash signatures.

Everything is exact integer arithmetic modulo 2^64 or 2^32, so the same text gives the same bytes on every machine.
`tests/oracles/shingles.py` is the same in plain Python, and datasketch is the reference for the signatures.
"""

import numba
import numpy as np

from tasks.curation.text.code_points import UNSPACED, WORD


@numba.njit(cache=True, nogil=True)
def shingle_hashes(points: np.ndarray, table: np.ndarray, words: int, characters: int) -> np.ndarray:
    """A 64-bit hash of the shingle at each token that has one, shape (n,), in order of the text.

    A shingle is `words` tokens when it begins with a word, `characters` tokens when it begins with a code point of a
    script without spaces.
    """
    tokens = np.empty(len(points), dtype=np.uint64)
    alone = np.empty(len(points), dtype=np.bool_)
    count = 0
    position = 0
    while position < len(points):
        kind = table[points[position]] & (WORD | UNSPACED)
        if kind == 0:
            position += 1
            continue
        value = np.uint64(0xCBF29CE484222325)
        value = (value ^ np.uint64(points[position])) * np.uint64(0x100000001B3)  # FNV-1a over code points
        position += 1
        if kind == WORD:
            while position < len(points) and table[points[position]] & (WORD | UNSPACED) == WORD:
                value = (value ^ np.uint64(points[position])) * np.uint64(0x100000001B3)
                position += 1
        value ^= value >> np.uint64(33)  # MurmurHash3's finalizer spreads FNV's weak high bits
        value *= np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(33)
        value *= np.uint64(0xC4CEB9FE1A85EC53)
        tokens[count] = value ^ (value >> np.uint64(33))
        alone[count] = kind != WORD
        count += 1
    out = np.empty(count, dtype=np.uint64)
    found = 0
    for start in range(count):
        length = characters if alone[start] else words
        if start + length > count:
            continue
        value = tokens[start]
        for step in range(1, length):
            value ^= value >> np.uint64(29)  # mixing between the steps keeps the order of the tokens in the hash
            value *= np.uint64(0x9E3779B97F4A7C15)
            value += tokens[start + step]
        out[found] = value ^ (value >> np.uint64(32))
        found += 1
    return out[:found]


@numba.njit(cache=True, nogil=True)
def minhash(hashes: np.ndarray, factors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Least value of each permutation over the hashes folded to 32 bits, shape (permutations,), uint32.

    datasketch's scheme `affine32`: MurmurHash3's 32-bit finalizer, then factor × h + offset modulo 2^32.
    """
    least = np.full(len(factors), 0xFFFFFFFF, dtype=np.uint32)
    for value in hashes:
        h = np.uint32(value ^ (value >> np.uint64(32)))
        h ^= h >> np.uint32(16)
        h = np.uint32(h * np.uint32(0x85EBCA6B))
        h ^= h >> np.uint32(13)
        h = np.uint32(h * np.uint32(0xC2B2AE35))
        h ^= h >> np.uint32(16)
        for number in range(len(factors)):
            least[number] = min(least[number], np.uint32(factors[number] * h + offsets[number]))
    return least


@numba.njit(cache=True, nogil=True)
def shared_values(left: np.ndarray, right: np.ndarray) -> int:
    """How many values two sorted sets share."""
    i = j = shared = 0
    while i < len(left) and j < len(right):
        if left[i] == right[j]:
            shared += 1
            i += 1
            j += 1
        elif left[i] < right[j]:
            i += 1
        else:
            j += 1
    return shared
