"""Preference records: answers to one prompt, ranked by one person or rule. Other tools' forms are told by their keys.

One record is one judgement:

    {"id", "prompt": [{"role", "content"}, …], "responses": [text, …], "ranks": [int, …], "scores": [float, …] | null,
     "domain", "criterion", "annotator": text | null, "synthetic": bool, "source", "source_id"}

The prompt ends with the user; ranks are from 1, the best, and equal ones are a tie; scores, where the annotator gave
any, say by how much (their differences are margins). Several people's judgements of the same answers are several
records that differ in `annotator`.
"""

import re
from collections.abc import Callable
from itertools import combinations, groupby
from typing import Any

from tasks.corpus.artifact import content_hash
from tasks.training.conversations import Messages, Unusable, checked, read_conversation

OVERALL = "overall"  # the criterion of a judgement that names none
MOST_RESPONSES = 64  # of one record: pairs grow with the square
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
ANSWER = "."  # stands for the answer when a prompt's form is checked

Judged = tuple[Messages, list[str], list[int]]  # prompt, responses, ranks


def read_preference(record: dict[str, Any], *, domain: str = "general", source: str = "") -> dict[str, Any]:
    """A record in the project's form. `domain` and `source` are for records that name none. Raises Unusable."""
    form = next((form for fits, form in FORMS if fits(record)), None)
    if form is None:
        raise Unusable(
            "unknown_form",
            f"keys {', '.join(sorted(map(str, record)))[:80]}; expected a prompt with responses and ranks, or with "
            "chosen and rejected",
        )
    prompt, responses, ranks = form(record)
    _check(prompt, responses, ranks)
    annotator = record.get("annotator")
    judgement = {
        "prompt": prompt,
        "responses": responses,
        "ranks": ranks,
        "scores": _scores(record, ranks),
        "domain": str(record.get("domain") or domain),
        "criterion": str(record.get("criterion") or OVERALL),
        "annotator": None if annotator is None else str(annotator),
        "synthetic": bool(record.get("synthetic", False)),
    }
    return {
        "id": content_hash(judgement)[:32],
        **judgement,
        "source": str(record.get("source") or source),
        "source_id": None if record.get("id") is None else str(record["id"]),
    }


def _own(record: dict[str, Any]) -> Judged:
    ranks = record["ranks"]
    if not isinstance(ranks, list) or not all(type(rank) is int and rank >= 1 for rank in ranks):
        raise Unusable("ranks", "`ranks` must be whole numbers from 1, the best, one for each response")
    return _prompt(record["prompt"]), _texts(record["responses"], "responses"), ranks


def _pair(record: dict[str, Any]) -> Judged:
    """A prompt with `chosen` and `rejected`; `tie: true` when neither is better."""
    place = next(name for name in ("prompt", "conversations", "messages", "instruction") if name in record)
    prompt = _asked(record) if place != "prompt" else _prompt(record["prompt"])
    responses = [_answer(record[name], name) for name in ("chosen", "rejected")]
    return prompt, responses, [1, 1] if record.get("tie") else [1, 2]


def _ranking(record: dict[str, Any]) -> Judged:
    """An Alpaca question whose `output` lists answers from the best to the worst, as OpenAssistant's rankings come."""
    responses = _texts(record["output"], "output")
    return _asked(record), responses, list(range(1, len(responses) + 1))


def _transcripts(record: dict[str, Any]) -> Judged:
    """Two whole transcripts "\\n\\nHuman: …\\n\\nAssistant: …" that differ in the last answer (Bai et al. 2022)."""
    chosen, rejected = _transcript(record["chosen"]), _transcript(record["rejected"])
    if chosen[:-1] != rejected[:-1]:
        raise Unusable("prompts_differ", "chosen and rejected are not two answers to the same prompt")
    return chosen[:-1], [chosen[-1]["content"], rejected[-1]["content"]], [1, 2]


FORMS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], Judged]], ...] = (
    (lambda r: {"prompt", "responses", "ranks"} <= r.keys(), _own),
    (lambda r: {"instruction", "output"} <= r.keys() and isinstance(r["output"], list), _ranking),
    (lambda r: {"chosen", "rejected"} <= r.keys() and bool(r.keys() & {"prompt", "conversations", "messages"}), _pair),
    (lambda r: {"chosen", "rejected", "instruction"} <= r.keys(), _pair),
    (lambda r: {"chosen", "rejected"} <= r.keys(), _transcripts),
)


def _asked(record: dict[str, Any]) -> Messages:
    """The prompt of an Alpaca, ShareGPT or OpenAI record whose answer stands elsewhere."""
    known = {name: value for name, value in record.items() if name in ("instruction", "input", "history", "system")}
    if "instruction" in record:
        return read_conversation({**known, "output": ANSWER})[:-1]
    if "conversations" in record:
        return _completed(record, "conversations", {"from": "gpt", "value": ANSWER})
    return _completed(record, "messages", {"role": "assistant", "content": ANSWER})


def _completed(record: dict[str, Any], name: str, answer: dict[str, str]) -> Messages:
    listed = record[name]
    if not isinstance(listed, list) or not listed:
        raise Unusable("unknown_form", f"`{name}` must be a list of messages that is not empty")
    system = {"system": record["system"]} if record.get("system") else {}
    return read_conversation({**system, name: [*listed, answer]})[:-1]


def _prompt(prompt: Any) -> Messages:
    if isinstance(prompt, str):
        return checked([{"role": "user", "content": prompt}, {"role": "assistant", "content": ANSWER}])[:-1]
    return _completed({"messages": prompt}, "messages", {"role": "assistant", "content": ANSWER})


def _answer(answer: Any, where: str) -> str:
    """An answer's text: as it is, or as one message of ShareGPT's or OpenAI's."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, dict):
        answer = answer.get("content", answer.get("value"))
    if not isinstance(answer, str):
        raise Unusable("not_text", f"`{where}` holds no text")
    return answer


def _texts(listed: Any, where: str) -> list[str]:
    if not isinstance(listed, list):
        raise Unusable("unknown_form", f"`{where}` must be a list of answers")
    return [_answer(item, f"{where} {place}") for place, item in enumerate(listed)]


def _transcript(text: Any) -> Messages:
    if not isinstance(text, str):
        raise Unusable("not_text", "a transcript must be text")
    before, *parts = _TURN.split(text)
    if before.strip() or not parts:
        raise Unusable("unknown_form", "a transcript must begin with '\\n\\nHuman:'")
    turns = [(_ROLES[who], said.strip()) for who, said in zip(parts[::2], parts[1::2], strict=True)]
    runs = [(role, [said for _, said in run]) for role, run in groupby(turns, key=lambda turn: turn[0])]
    return checked([{"role": role, "content": "\n\n".join(said)} for role, said in runs])


def _check(prompt: Messages, responses: list[str], ranks: list[int]) -> None:
    if not 2 <= len(responses) <= MOST_RESPONSES:
        raise Unusable("too_few_responses", f"{len(responses)} responses; 2 to {MOST_RESPONSES} can be compared")
    if len(ranks) != len(responses):
        raise Unusable("ranks", f"{len(responses)} responses, but {len(ranks)} ranks")
    for response in responses:
        checked([*prompt, {"role": "assistant", "content": response}])
    if len(set(responses)) < len(responses):
        raise Unusable("same_response", "two of the responses are the same text")


def _scores(record: dict[str, Any], ranks: list[int]) -> list[float] | None:
    scores = record.get("scores")
    if scores is None and record.get("margin") is not None and len(ranks) == 2:
        scores = [record["margin"], 0.0]
    if scores is None:
        return None
    if not isinstance(scores, list) or not all(type(score) in (int, float) and abs(score) < 1e6 for score in scores):
        raise Unusable("scores", "`scores` must be numbers, one for each response")
    if len(scores) != len(ranks) or any(
        (ranks[a] - ranks[b]) * (scores[a] - scores[b]) > 0 for a, b in combinations(range(len(ranks)), 2)
    ):
        raise Unusable("scores", "a response that is ranked lower has the higher score")
    return [float(score) for score in scores]
