"""Prompts to answer, from instruction records: all but the last answer, which verifiable rewards compare with."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.corpus.artifact import content_hash
from tasks.errors import DataError
from tasks.tokens.chat import UnfitRecord, encode_conversation
from tasks.tokens.documents import Split, fraction, split_of
from tasks.training.conversations import Messages
from tasks.training.data import Shuffled
from tasks.training.instructions import read_all
from tasks.training.recipe import RlhfStage


@dataclass(frozen=True)
class Prompt:
    """A prompt as tokens (length,), what it asks for in words, the answer that its record has, tests for its code."""

    id: str
    ids: np.ndarray
    messages: Messages
    reference: str
    domain: str
    tests: str = ""


def read_prompts(
    uri: str, config: RlhfStage, tokenizer: Any
) -> tuple[dict[Split, list[Prompt]], Counter[str]]:
    """Both splits' prompts in the order of their hashes, each once, and the counts of what was left out.

    Raises DataError when a split is left empty.
    """
    conversations, counts = read_all(uri)
    found: dict[str, Prompt] = {}
    for conversation in conversations:
        asked, answer = conversation.messages[:-1], conversation.messages[-1]["content"]
        identity = content_hash(asked)[:32]
        if config.categories and conversation.category not in config.categories:
            counts["other_category"] += 1
            continue
        if identity in found:
            counts["same_prompt"] += 1
            continue
        try:
            ids = encode_prompt(tokenizer, asked)
        except UnfitRecord as error:
            counts[error.reason] += 1
            continue
        if len(ids) > config.prompt_tokens:
            counts["too_long"] += 1
            continue
        found[identity] = Prompt(identity, ids, asked, answer, conversation.category, conversation.tests)
    chosen = sorted(found.values(), key=lambda prompt: (fraction(prompt.id, "prompts"), prompt.id))
    splits: dict[Split, list[Prompt]] = {"train": [], "heldout": []}
    for prompt in chosen[: config.max_records]:
        splits[split_of(prompt.id, config.heldout_share)].append(prompt)
    for split, prompts in splits.items():
        if not prompts:
            raise DataError(f"{uri}: no prompt falls into the {split} split; add instruction records ({dict(counts)})")
        if "code_tests" in config.rewards and not any(prompt.tests for prompt in prompts):
            raise DataError(f"{uri}: no record of the {split} split has `tests`, which the reward code_tests runs")
    return splits, counts


def encode_prompt(tokenizer: Any, messages: Messages) -> np.ndarray:
    """A conversation up to where the assistant begins: (length,) int64. Raises UnfitRecord."""
    encode_conversation(tokenizer, [*messages, {"role": "assistant", "content": "."}])  # refuses special tokens in text
    ids: Any = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    return np.array(ids, np.int64)


class PromptOrder:
    """Which prompts a round answers: every prompt once an epoch. The same on any number of ranks."""

    def __init__(self, count: int, config: RlhfStage) -> None:
        self.config, self.order = config, Shuffled(count, config.seed)

    def round(self, step: int) -> list[int]:
        """Numbers of the prompts of round `step`."""
        first = step * self.config.prompts
        return [self.order.at(position) for position in range(first, first + self.config.prompts)]
