"""Records of other tools as conversations: Alpaca, ShareGPT and OpenAI messages, told apart by their keys.

A conversation is an optional system message, then user and assistant in turns, the assistant last. Nothing is mended on
the way: a record that does not fit is refused with a reason, so that whoever owns it can mend it.
"""

from collections.abc import Callable, Sequence
from typing import Any

Messages = list[dict[str, str]]

SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
OPENAI_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ASKED, ANSWERED = ("question", "prompt", "query"), ("answer", "response", "completion")


class Unusable(Exception):
    """A record that is no conversation: a short `reason` to count by, and what exactly was found."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


def read_conversation(record: dict[str, Any]) -> Messages:
    """The messages of a record in any known form. Raises Unusable."""
    for known, convert in FORMS.items():
        if known in record:
            return checked(convert(record))
    asked = next((name for name in ASKED if name in record), None)
    answered = next((name for name in ANSWERED if name in record), None)
    if asked and answered:
        return checked(_turns([(record[asked], record[answered])]))
    raise Unusable("unknown_form", f"keys {', '.join(sorted(map(str, record)))[:80]}; expected {', '.join(FORMS)}")


def checked(messages: Messages) -> Messages:
    """The same messages. Raises Unusable when they are no conversation, or a text cannot be trained on."""
    dialogue = messages[1:] if messages and messages[0]["role"] == "system" else messages
    for place, message in enumerate(messages):
        if not message["content"].strip():
            raise Unusable("empty_message", f"message {place} ({message['role']}) has no text")
        if "\0" in message["content"]:
            raise Unusable("nul_character", f"message {place} ({message['role']}) holds NUL characters")
        if not _is_unicode(message["content"]):
            raise Unusable("damaged_text", f"message {place} ({message['role']}) holds half a surrogate pair")
    if not dialogue or dialogue[-1]["role"] != "assistant":
        raise Unusable("no_answer", "the assistant must have the last word, for that is what is learnt")
    for place, message in enumerate(dialogue):
        if message["role"] != ("user", "assistant")[place % 2]:
            raise Unusable("turns", f"user and assistant must take turns, but turn {place} is the {message['role']}'s")
    return messages


def _alpaca(record: dict[str, Any]) -> Messages:
    """{"instruction", "input", "output", "system", "history": [[question, answer], …]} (Taori et al. 2023)."""
    if "output" not in record:
        raise Unusable("unknown_form", "an `instruction` without an `output`")
    asked, given = _text(record["instruction"], "instruction"), _text(record.get("input") or "", "input")
    history = record.get("history") or []
    if not all(isinstance(turn, Sequence) and len(turn) == 2 for turn in history):
        raise Unusable("unknown_form", "`history` must be a list of [question, answer]")
    system = [{"role": "system", "content": _text(record["system"], "system")}] if record.get("system") else []
    turns = [*history, (f"{asked}\n\n{given}" if given.strip() else asked, record["output"])]
    return system + _turns([(turn[0], turn[1]) for turn in turns])


def _sharegpt(record: dict[str, Any]) -> Messages:
    """{"conversations": [{"from", "value"}, …], "system"}."""
    messages = _messages(record["conversations"], "from", "value", SHAREGPT_ROLES)
    if record.get("system") and messages[:1] and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _text(record["system"], "system")})
    return messages


def _openai(record: dict[str, Any]) -> Messages:
    """{"messages": [{"role", "content"}, …]}; a content may be a list of parts, of which text alone is taken."""
    return _messages(record["messages"], "role", "content", OPENAI_ROLES)


FORMS: dict[str, Callable[[dict[str, Any]], Messages]] = {
    "messages": _openai,
    "conversations": _sharegpt,
    "instruction": _alpaca,
}


def _messages(listed: Any, who: str, what: str, roles: dict[str, str]) -> Messages:
    if not isinstance(listed, list) or not listed:
        raise Unusable("unknown_form", "expected a list of messages that is not empty")
    messages = []
    for place, message in enumerate(listed):
        if not isinstance(message, dict) or not isinstance(message.get(who), str):
            raise Unusable("unknown_form", f"message {place} has no `{who}`")
        if message.get("tool_calls") or message.get("function_call"):
            raise Unusable("tool_use", f"message {place} calls a tool")
        role = roles.get(message[who])
        if role is None:
            raise Unusable("unknown_role", f"message {place} is of '{message[who]:.40}'; known: {', '.join(roles)}")
        messages.append({"role": role, "content": _text(message.get(what), f"message {place}")})
    return messages


def _turns(pairs: list[tuple[Any, Any]]) -> Messages:
    messages = []
    for asked, answered in pairs:
        messages.append({"role": "user", "content": _text(asked, "question")})
        messages.append({"role": "assistant", "content": _text(answered, "answer")})
    return messages


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        kinds = {str(part.get("type")) if isinstance(part, dict) else type(part).__name__ for part in content}
        if kinds == {"text"}:
            return "".join(_text(part.get("text", part.get("value")), where) for part in content)
        raise Unusable("content_part", f"{where} has parts of type {', '.join(sorted(kinds))}; only text is")
    raise Unusable("not_text", f"{where} is of type {type(content).__name__}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
