"""Shingles and signatures in plain Python, and datasketch: what the compiled kernels must equal."""

import re

import numpy as np
import xxhash
from datasketch import MinHash

from tasks.curation.config import DedupConfig
from tasks.curation.text.code_points import UNSPACED_RANGES as UNSPACED

TOKEN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+")
MASK = 2**64 - 1


def token_hash(token: str) -> int:
    value = 0xCBF29CE484222325
    for point in map(ord, token):
        value = (value ^ point) * 0x100000001B3 & MASK
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ (value >> 33)


def gram_hash(tokens: list[str]) -> int:
    value = token_hash(tokens[0])
    for token in tokens[1:]:
        value ^= value >> 29
        value = (value * 0x9E3779B97F4A7C15 + token_hash(token)) & MASK
    return value ^ (value >> 32)


def shingles(text: str, config: DedupConfig) -> set[int]:
    tokens = TOKEN.findall(text.casefold())
    found = set()
    for start, token in enumerate(tokens):
        length = config.characters if re.match(f"[{UNSPACED}]", token) else config.words
        if start + length <= len(tokens):
            found.add(gram_hash(tokens[start : start + length]))
    return found or {xxhash.xxh3_64_intdigest(text.encode())}


def signature(text: str, config: DedupConfig) -> np.ndarray:
    """By datasketch, one update a shingle."""
    reference = MinHash(num_perm=config.permutations, seed=config.seed, hashfunc=int, scheme="affine32")
    for value in shingles(text, config):
        reference.update((value ^ (value >> 32)) & 0xFFFFFFFF)
    return reference.hashvalues
