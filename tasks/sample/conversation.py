"""Instruction records: conversations of one or more turns, each a question and its answer."""

import re
from dataclasses import dataclass
from typing import Any

_SENTENCE = re.compile(r"[A-Z`'\"].{38,}[.!?:]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Conversation:
    """`turns` are (user, assistant) pairs. `id` names where the answer comes from, never a place on this machine."""

    id: str
    category: str
    source: str
    turns: tuple[tuple[str, str], ...]

    def record(self) -> dict[str, Any]:
        """The record as it is written: {"id", "messages", "source", "category"}."""
        messages = []
        for user, assistant in self.turns:
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        return {"id": self.id, "messages": messages, "source": self.source, "category": self.category}


class Unseen:
    """Tells new conversations from those whose question or answer was there before, whatever case and white space."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, conversation: Conversation) -> bool:
        texts = {" ".join(text.split()).casefold() for turn in conversation.turns for text in turn}
        if texts & self._seen:
            return False
        self._seen |= texts
        return True


def first_paragraph(text: str) -> str:
    """The text up to its first empty line, its lines joined."""
    return " ".join(re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0].split())


def is_sentence(text: str) -> bool:
    """Whether a paragraph reads as an English sentence: a capital, some 40 characters, six words, an end mark."""
    letters = sum(character.isascii() and character.isalpha() for character in text)
    return bool(_SENTENCE.fullmatch(text)) and len(text.split()) >= 6 and letters >= 0.6 * len(text)
