"""Pairs as packed sequences: both answers with their prompt side by side, each as if it were alone."""

from collections import Counter
from collections.abc import Sequence as Several
from typing import Any

import numpy as np
import torch

from tasks.errors import DataError
from tasks.tokens.chat import UnfitRecord, check_template
from tasks.tokens.packing import best_fit
from tasks.training.data import Sequence
from tasks.training.losses import IGNORED, preference_losses
from tasks.training.preferences.pairs import Pair
from tasks.training.reward_model import encode_answer

Encoded = tuple[np.ndarray, np.ndarray]  # the chosen answer, the rejected one, both with their prompt


class PackedPairs:
    """Sequences of whole pairs: chosen, rejected, chosen, rejected, …; a source of batches.

    Labels stand at the last token of each answer: twice the pair's number, and one more for the rejected.
    """

    def __init__(self, pairs: Several[Pair], encoded: Several[Encoded], criteria: Several[str], length: int) -> None:
        self.length = length
        bins = best_fit([len(chosen) + len(rejected) for chosen, rejected in encoded], length)
        order = [place for members in bins for place in members]
        self.pairs = [pairs[place] for place in order]
        self.encoded = [encoded[place] for place in order]
        self._first = np.cumsum([0, *map(len, bins)])
        self.weights = torch.tensor([pair.weight for pair in self.pairs])
        self.margins = torch.tensor([pair.margin for pair in self.pairs])
        self.ties = torch.tensor([pair.tie for pair in self.pairs])
        self.heads = torch.tensor([list(criteria).index(pair.criterion) for pair in self.pairs])

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, index: int) -> Sequence:
        parts = [part for number in self._members(index) for part in self.encoded[number]]
        ids, sizes = np.concatenate(parts), [len(part) for part in parts]
        positions = np.concatenate([np.arange(size) for size in sizes])
        labels = np.full(len(ids), IGNORED, np.int64)
        labels[np.cumsum(sizes) - 1] = 2 * int(self._first[index]) + np.arange(len(parts))
        return Sequence(ids, positions, labels != IGNORED, labels)

    def _members(self, index: int) -> range:
        return range(int(self._first[index]), int(self._first[index + 1]))

    def units(self, index: int) -> np.ndarray:
        """The pair that each token belongs to."""
        members = self._members(index)
        return np.repeat(np.array(members), [sum(map(len, self.encoded[number])) for number in members])

    def name(self, unit: int) -> tuple[str, str]:
        """Record and source of a pair."""
        return self.pairs[unit].record_id, self.pairs[unit].source

    def losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Bradley–Terry losses, (answers,): a pair's at both its answers, so that their mean is the mean over pairs.

        `scores` (answers, criteria) and `labels` (answers,) are those of a batch's answers in their order.
        """
        pair = labels[::2] // 2
        given = scores.float().gather(1, self.heads[labels // 2][:, None])[:, 0]
        found = preference_losses(given[::2], given[1::2], self.margins[pair], self.ties[pair]) * self.weights[pair]
        return found.repeat_interleave(2)


def pack_pairs(
    pairs: Several[Pair], tokenizer: Any, criteria: Several[str], length: int, counts: Counter[str]
) -> PackedPairs:
    """Encode and pack pairs. What does not fit `length`, or the template, is left out and counted.

    Cutting an answer would judge what nobody wrote. Raises DataError when no pair is left.
    """
    check_template(tokenizer)
    kept: list[Pair] = []
    encoded: list[Encoded] = []
    for pair in pairs:
        if pair.criterion not in criteria:
            counts["other_criterion"] += 1
            continue
        try:
            both = tuple(encode_answer(tokenizer, pair.prompt, answer) for answer in (pair.chosen, pair.rejected))
        except UnfitRecord as error:
            counts[error.reason] += 1
            continue
        if sum(map(len, both)) > length:
            counts["too_long"] += 1
            continue
        kept.append(pair)
        encoded.append((both[0], both[1]))
    if not kept:
        raise DataError(f"of {len(pairs)} pairs none can be learnt from: {dict(counts)} (sequence_length, criteria)")
    return PackedPairs(kept, encoded, criteria, length)
