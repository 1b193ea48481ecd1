"""What an answer earns: reward models and rules, each logged, weighted into one."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.errors import DataError
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.recipe import FUNCTIONS, RlhfStage
from tasks.training.reward_model import criteria_of, load_reward_model, scores
from tasks.training.rl.prompts import Prompt
from tasks.training.rl.sandbox import code_of, run_tests

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class Scorer:
    """Rewards of a stage by name. Every rank holds the reward models whole, and scores its own answers."""

    def __init__(
        self, config: RlhfStage, folders: dict[str, Path], criteria: dict[str, dict[str, float]], tokenizer: Any
    ) -> None:
        """`folders` has every reward stage's artifact, `criteria` the weights of its heads.

        Raises DataError for a reward model that reads other tokens than the policy's `tokenizer` writes.
        """
        self.config, self.criteria = config, criteria
        self.models: dict[str, Any] = {name: load_reward_model(folders[name]) for name in config.reward_stages}
        for name, model in self.models.items():
            if criteria_of(model) != list(criteria[name]):
                raise DataError(f"{folders[name]}: heads {criteria_of(model)}, but its record says {criteria[name]}")
            if load_tokenizer(folders[name]).get_vocab() != tokenizer.get_vocab():
                raise DataError(f"{folders[name]}: this reward model has another tokenizer than the policy")

    def __call__(self, prompts: Sequence[Prompt], answers: Sequence[np.ndarray], texts: Sequence[str]) -> np.ndarray:
        """Scores, (answers, rewards) float64, in the order of the recipe; a model's heads are weighted into one."""
        columns = []
        for name in self.config.rewards:
            if name in FUNCTIONS:
                columns.append([RULES[name](text, prompt) for prompt, text in zip(prompts, texts, strict=True)])
                continue
            whole = [np.concatenate([prompt.ids, ids]) for prompt, ids in zip(prompts, answers, strict=True)]
            found = scores(self.models[name], whole, self.config.micro_batch).astype(float)
            weights = np.array(list(self.criteria[name].values()))
            columns.append(found @ (weights / weights.sum()))
        return np.array(columns, float).T.reshape(len(answers), len(self.config.rewards))


def exact_answer(text: str, prompt: Prompt) -> float:
    """1 when an answer comes to what the record's comes to: the last number of both, or else the same words."""
    reference = prompt.reference
    numbers = NUMBER.findall(reference)
    if numbers:
        found = NUMBER.findall(text)
        return float(bool(found) and _value(found[-1]) == _value(numbers[-1]))
    return float(" ".join(text.split()).casefold() == " ".join(reference.split()).casefold())


def code_tests(text: str, prompt: Prompt) -> float:
    """1 when the answer's code passes the record's tests in the sandbox; 0 where the record has none."""
    return float(bool(prompt.tests) and run_tests(code_of(text), prompt.tests).passed)


RULES: dict[str, Callable[[str, Prompt], float]] = {"exact_answer": exact_answer, "code_tests": code_tests}


def _value(number: str) -> float:
    return float(number.replace(",", ""))
