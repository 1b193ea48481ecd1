"""How a tuned model answers: words that its reference answers hardly use, and how well it does turn by turn."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from tasks.evaluation.heldout import Losses, heldout_losses, model_loss
from tasks.evaluation.outputs import rare_words
from tasks.evaluation.safety import answers
from tasks.training.data import Sequence as Packed
from tasks.training.data import Source
from tasks.training.instructions import Conversation, pack_conversations

QUESTIONS = 16
NEW_TOKENS = 48  # of an answer: 16 of them are some 500 words
MOST_SEQUENCES = 24  # of conversations of several turns


def measure_wording(
    model: PreTrainedModel, parent: PreTrainedModel, tokenizer: Any, heldout: Sequence[Conversation]
) -> dict[str, float]:
    """Shares of words that are rare in the records' own answers: in those answers, the parent's and the model's.

    Nothing where the answers have too few words to say what is rare. Held-out questions are asked, the first of a
    conversation each.
    """
    references = [text for item in heldout for text in _said(item)]
    usual = rare_words(references, references)
    if usual is None:
        return {}
    asked = [item.messages[0]["content"] for item in heldout if item.messages[0]["role"] == "user"][:QUESTIONS]
    shares = [rare_words(answers(some, tokenizer, asked, NEW_TOKENS), references) or 0.0 for some in (model, parent)]
    return {"rare_words": shares[0], "parent_rare_words": shares[1], "reference_rare_words": usual}


def _said(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages if message["role"] == "assistant"]


def measure_turns(
    model: PreTrainedModel, parent: PreTrainedModel, tokenizer: Any, heldout: Sequence[Conversation], length: int
) -> dict[str, dict[str, float]]:
    """Held-out response loss by turn, the model's and its parent's, over conversations of several turns.

    Nothing where no held-out record has several turns that fit into `length` tokens.
    """
    several = [item for item in heldout if len(_said(item)) > 1]
    if not several:
        return {}
    source = ByTurn(pack_conversations(several, tokenizer, length, Counter()))
    after, before = (
        heldout_losses(source, tokenizer.pad_token_id, model_loss(some), MOST_SEQUENCES) for some in (model, parent)
    )
    if np.count_nonzero(after.tokens) < 2:
        return {}
    return {"heldout_loss_by_turn": _by_turn(after), "parent_heldout_loss_by_turn": _by_turn(before)}


def _by_turn(losses: Losses) -> dict[str, float]:
    found = np.flatnonzero(losses.tokens)
    return {str(turn): float(losses.sums[turn] / losses.tokens[turn]) for turn in found}


class ByTurn:
    """Packed conversations whose units are the assistant's turns: 1 for every conversation's first answer, then 2."""

    def __init__(self, source: Source) -> None:
        self.source, self.length = source, source.length

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Packed:
        return self.source[index]

    def units(self, index: int) -> np.ndarray:
        """(length,) turn of each token that is supervised; of others, of the answer before them."""
        packed = self.source[index]
        begins = packed.supervised & ~np.append(False, packed.supervised[:-1])
        turns = np.cumsum(begins)
        owners = self.source.units(index)
        first = np.searchsorted(owners, owners)  # where each token's conversation begins; owners only grow
        return turns - (turns[first] - begins[first])

    def name(self, unit: int) -> tuple[str, str]:
        return f"turn {unit}", ""
