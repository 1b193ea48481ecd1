"""Conversations as tokens, with a mask of what the assistant says."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.errors import DataError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


def check_template(tokenizer: Any) -> None:
    """Raise DataError when the chat template cannot mark the assistant's tokens.

    Without the marker the mask is all zero, and training would learn from nothing, or from the user's words.
    """
    template = tokenizer.chat_template
    if not isinstance(template, str) or not GENERATION.search(template):
        raise DataError(
            "the tokenizer's chat template has no {% generation %} … {% endgeneration %} around the assistant's text, "
            "so the loss cannot be kept to it; add the marker to chat_template.jinja"
        )


def encode_conversation(tokenizer: Any, messages: Sequence[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and the assistant's mask of one conversation: two (length,) arrays, int64 and bool.

    Raises DataError when a message holds the text of a special token: in the template it would become the token
    itself, and a user could end the assistant's turn.
    """
    for message in messages:
        for token in tokenizer.all_special_tokens:
            if token in message["content"]:
                raise DataError(f"a {message['role']} message holds the special token {token!r} as text")
    encoded = tokenizer.apply_chat_template(list(messages), return_dict=True, return_assistant_tokens_mask=True)
    return np.array(encoded["input_ids"], np.int64), np.array(encoded["assistant_masks"], bool)
