"""A tiny model that answers with a few words, and a preference for short answers: the least that rewards can teach."""

import random
from pathlib import Path
from typing import Any

import torch

from tasks.corpus.artifact import write_artifact
from tasks.corpus.shards import write_shard
from tasks.tokens.chat import encode_conversation
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.data import Sequence, collate_tight
from tasks.training.losses import causal_loss
from tasks.training.model import export_model, new_model
from tasks.training.recipe import ModelShape

LENGTH = 64
WORDS = ["import", "return", "class", "self", "value", "string", "module", "function", "object", "file"]
SHAPE = ModelShape(hidden_size=32, intermediate_size=64, layers=2, heads=4, key_value_heads=2, context=LENGTH)


def conversations(count: int, seed: int) -> list[dict[str, Any]]:
    """Questions and answers of one to eight words, all lengths alike often."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        asked = f"Say {chance.choice(WORDS)} ({number})"
        said = " ".join(chance.choices(WORDS, k=chance.randint(1, 8)))
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        found.append({"messages": messages, "category": ("code", "law")[number % 2], "source": "talk"})
    return found


def make_talker(folder: Path, steps: int = 120) -> str:
    """URI of a model artifact that was taught the conversations in this process."""
    records = conversations(400, 0)
    texts = [message["content"] for record in records for message in record["messages"]]
    tokenizer = train_tokenizer([" ".join(texts)], 400, LENGTH)
    rows = []
    for record in records:
        ids, mask = encode_conversation(tokenizer, record["messages"])
        rows.append(Sequence(ids, torch.arange(len(ids)).numpy(), mask))
    model = new_model(SHAPE, tokenizer, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    chance = random.Random(1)
    for _ in range(steps):
        batch = collate_tight(chance.sample(rows, 16), tokenizer.pad_token_id)
        logits = model(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False).logits
        loss = causal_loss(logits, batch.labels, batch.supervised)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {name: value.detach() for name, value in model.named_parameters()}
    export_model(state, model, tokenizer, folder)
    write_artifact(
        str(folder),
        kind="model",
        stage="sft",
        key="made",
        config_hash="",
        code_version=1,
        metrics={"peak_learning_rate": 1e-2},
    )
    return str(folder)


def make_instructions(folder: Path) -> str:
    """URI of records whose prompts are to be answered."""
    write_shard(folder / "talk.jsonl.zst", conversations(200, 2))
    return str(folder)


def make_preferences(folder: Path, count: int = 200) -> str:
    """URI of pairs of answers such as the talker gives, the shorter one preferred."""
    chance = random.Random(3)
    records = []
    for number in range(count):
        short, long = (chance.choices(WORDS, k=k) for k in sorted(chance.sample(range(1, 9), 2)))
        prompt = f"Say {chance.choice(WORDS)} ({number})"
        records.append({"prompt": prompt, "chosen": " ".join(short), "rejected": " ".join(long), "synthetic": True})
    write_shard(folder / "short.jsonl.zst", records)
    return str(folder)
