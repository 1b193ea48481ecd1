"""Other wordings of a question, as people type them: another case, space or a slip of the finger.

Only what the user says is changed; the answer to learn stays as it was. A record's wording follows from the seed and
the record alone.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tasks.tokens.documents import fraction
from tasks.training.instructions import Conversation
from tasks.training.tuning import Augmentation


def augmented(conversations: list[Conversation], config: Augmentation | None, seed: int) -> list[Conversation]:
    """The same records, a share of them with reworded questions."""
    if config is None:
        return conversations
    found = []
    for conversation in conversations:
        if fraction(conversation.id, f"augment {seed}") >= config.share:
            found.append(conversation)
            continue
        draw = np.random.default_rng([seed, int(conversation.id[:16], 16)])
        change = KINDS[config.kinds[int(draw.integers(len(config.kinds)))]]
        messages = [
            {**message, "content": change(message["content"], draw)} if message["role"] == "user" else message
            for message in conversation.messages
        ]
        found.append(replace(conversation, messages=messages))
    return found


def _case(text: str, draw: np.random.Generator) -> str:
    return text.lower() if draw.integers(2) else text[:1].lower() + text[1:]


def _space(text: str, draw: np.random.Generator) -> str:
    ends = ("", " ", "\n")
    return text.strip().rstrip("?.!") + ends[int(draw.integers(len(ends)))]


def _typo(text: str, draw: np.random.Generator) -> str:
    """Two neighbouring letters of a word change places."""
    places = [i for i in range(1, len(text) - 1) if text[i].isalpha() and text[i + 1].isalpha()]
    if not places:
        return text
    place = places[int(draw.integers(len(places)))]
    return text[:place] + text[place + 1] + text[place] + text[place + 2 :]


KINDS: dict[str, Callable[[str, np.random.Generator], str]] = {"case": _case, "space": _space, "typo": _typo}
