"""Conversations as tokens, with a mask of what the assistant says, under any chat template that lets it be told.

A template with `{% generation %} … {% endgeneration %}` says itself what the assistant's words are. For any other they
are what rendering adds to the prompt that the model would be given at that turn: the text up to the assistant's turn,
rendered with the generation prompt, must be the beginning of the whole. So the loss sees exactly what the model will
have to write, its end-of-turn token included.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError

from tasks.errors import DataError

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
PROBE = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": "It is."}]
Messages = Sequence[dict[str, str]]


class UnfitRecord(DataError):
    """One conversation that cannot be encoded; `reason` is a short name to count by."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def check_template(tokenizer: Any) -> None:
    """Raise DataError when the chat template cannot mark the assistant's tokens in so much as one question and answer.

    The mask would be all zero, or hold the user's words.
    """
    if not isinstance(tokenizer.chat_template, str):
        raise DataError("the tokenizer has no chat template; add chat_template.jinja to the model's folder")
    _, mask = encode_conversation(tokenizer, PROBE)
    if not mask.any():
        raise DataError(
            "the chat template marks nothing as the assistant's; put {% generation %} … {% endgeneration %} around its "
            "text in chat_template.jinja"
        )


def encode_conversation(tokenizer: Any, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and the assistant's mask of one conversation: two (length,) arrays, int64 and bool.

    Raises UnfitRecord when a message holds the text of a special token (in the template it would become the token
    itself, and a user could end the assistant's turn) or the template refuses the conversation; DataError when the
    template cannot mark the assistant's words.
    """
    special = special_tokens(tokenizer)
    for message in messages:
        for token in special:
            if token in message["content"]:
                detail = f"a {message['role']} message holds the special token {token!r} as text"
                raise UnfitRecord("special_token_in_text", detail)
    try:
        if GENERATION.search(tokenizer.chat_template):
            encoded = tokenizer.apply_chat_template(list(messages), return_dict=True, return_assistant_tokens_mask=True)
            return np.array(encoded["input_ids"], np.int64), np.array(encoded["assistant_masks"], bool)
        text, spans = _spans(tokenizer, list(messages))
    except TemplateError as error:
        raise UnfitRecord("refused_by_template", f"the chat template refuses a conversation: {error}") from None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, starts = np.array(encoded["input_ids"], np.int64), np.array([start for start, _ in encoded["offset_mapping"]])
    mask = np.zeros(len(ids), bool)
    closing = np.isin(ids, list(special.values()))
    for start, end in spans:
        inside = np.flatnonzero((starts >= start) & (starts < end))
        ends = np.flatnonzero(closing[inside])
        if not len(ends):
            raise DataError(
                "the chat template ends an answer with no special token, so a model could not learn to stop; "
                "add one, and {% generation %} … {% endgeneration %} around both, in chat_template.jinja"
            )
        mask[inside[: ends[-1] + 1]] = True  # after the end of a turn nothing is generated
    return ids, mask


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Every token that text must not turn into, those that have no role of their own included."""
    added = {str(token): i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))


def _spans(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, list[tuple[int, int]]]:
    """A conversation's text, and where in it [start, end) the assistant's turns lie."""

    def render(upto: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(messages[:upto], tokenize=False, add_generation_prompt=prompt)

    whole, spans = render(len(messages), False), []
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(place, True), render(place + 1, False)
        if not (whole.startswith(before) and whole.startswith(after) and len(before) < len(after)):
            raise DataError(
                f"the chat template cannot mark the assistant's words: its text up to message {place} is not how the "
                "whole conversation begins; put {% generation %} … {% endgeneration %} around the assistant's text in "
                "chat_template.jinja, or leave conversations of several turns out"
            )
        spans.append((len(before), len(after)))
    return whole, spans
