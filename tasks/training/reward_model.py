"""Reward models: a language model whose head gives one score a criterion at the end of an answer.

In training the head stands where the vocabulary's was, so that the engine, packing and everything else is the same; it
is exported as what transformers calls sequence classification, and loads as such.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from tasks.errors import DataError
from tasks.tokens.chat import encode_conversation
from tasks.training.conversations import Messages
from tasks.training.model import load_model

HEAD = "score.weight"  # of every decoder that transformers gives a sequence-classification head


def with_score_head(parent: Path, criteria: Sequence[str], seed: int) -> Any:
    """The parent with a new head of `criteria` scores, small and random: the same on every rank (Stiennon et al. 2020:
    deviation 1 / √(hidden size + 1))."""
    model: Any = load_model(parent)
    size = model.config.hidden_size
    head = nn.Linear(size, len(criteria), bias=False)
    with torch.no_grad():
        head.weight.normal_(0, (size + 1) ** -0.5, generator=torch.Generator().manual_seed(seed))
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    return model


def export_reward_model(
    state: dict[str, torch.Tensor], parent: Path, criteria: Sequence[str], tokenizer: Any, folder: Path
) -> None:
    """Write the gathered weights `state` as a sequence classifier, reload it, and compare every weight bit for bit.

    Raises DataError when weights are missing or left over, or what was read back differs.
    """
    config = AutoConfig.from_pretrained(parent, local_files_only=True)
    config.num_labels, config.pad_token_id, config.tie_word_embeddings = len(criteria), tokenizer.pad_token_id, False
    config.id2label = dict(enumerate(criteria))
    config.label2id = {name: number for number, name in enumerate(criteria)}
    model: Any = AutoModelForSequenceClassification.from_config(config)
    weights = {HEAD if name == "lm_head.weight" else name: weight for name, weight in state.items()}
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise DataError(f"{folder}: gathered weights do not fit a reward model: {error}") from None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = load_reward_model(folder).state_dict()
    for name, weight in model.state_dict().items():
        if not torch.equal(again[name], weight):
            raise DataError(f"{folder}: weight {name} is not what was saved; do not use this export")


def load_reward_model(folder: Path | str) -> PreTrainedModel:
    """The FP32 reward model in a folder, strictly. Raises DataError when a weight is missing, unexpected or misfit."""
    return load_model(folder, AutoModelForSequenceClassification)


def criteria_of(model: Any) -> list[str]:
    """What a reward model judges by, in the order of its scores."""
    return [model.config.id2label[number] for number in range(model.config.num_labels)]


def encode_answer(tokenizer: Any, prompt: Messages, answer: str) -> np.ndarray:
    """Token ids of a conversation up to the end of its last answer, where the score is read: (length,) int64.

    Raises UnfitRecord like `encode_conversation`.
    """
    ids, mask = encode_conversation(tokenizer, [*prompt, {"role": "assistant", "content": answer}])
    return ids[: int(np.flatnonzero(mask)[-1]) + 1]


@torch.inference_mode()
def scores(model: Any, answers: Sequence[np.ndarray], batch: int = 8) -> np.ndarray:
    """Scores of encoded answers, (answers, criteria) float32, in their order; the longest are computed first."""
    model.eval()
    found = np.zeros((len(answers), model.config.num_labels), np.float32)
    order = sorted(range(len(answers)), key=lambda number: (-len(answers[number]), number))
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        width = len(answers[some[0]])
        ids = np.full((len(some), width), model.config.pad_token_id, np.int64)
        seen = np.zeros((len(some), width), np.int64)
        for row, number in enumerate(some):
            ids[row, : len(answers[number])], seen[row, : len(answers[number])] = answers[number], 1
        given = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(seen), use_cache=False)
        found[some] = given.logits.float().numpy()
    return found
