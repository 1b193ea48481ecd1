"""A few generated texts, for a person to read in the report."""

from typing import Any

import torch
from transformers import PreTrainedModel

NEW_TOKENS = 48


def continuations(
    model: PreTrainedModel, tokenizer: Any, prompts: list[list[int]], seed: int = 0
) -> list[dict[str, str]]:
    """Sampled continuations (temperature 0.8, top-p 0.95) of prompts of token ids. The same seed, the same texts."""
    generating: Any = model
    found = []
    for number, prompt in enumerate(prompts):
        torch.manual_seed(seed + number)
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            output = generating.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW_TOKENS,
                do_sample=True,
                temperature=0.8,
                top_p=0.95,
                top_k=0,
            )
        found.append({"prompt": tokenizer.decode(prompt), "text": tokenizer.decode(output[0, len(prompt) :])})
    return found
