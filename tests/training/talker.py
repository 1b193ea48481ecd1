"""A tiny model that answers with a few words, and a preference for short answers: the least that rewards can teach."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tasks.corpus.artifact import write_artifact
from tasks.corpus.shards import write_shard
from tasks.tokens.chat import encode_conversation
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.data import Sequence, collate_tight
from tasks.training.job import Job
from tasks.training.losses import causal_loss
from tasks.training.model import export_model, new_model
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import ModelShape
from tests.training.jobs import steps_of

LENGTH = 64
WORDS = ["import", "return", "class", "self", "value", "string", "module", "function", "object", "file"]
SHAPE = ModelShape(hidden_size=32, intermediate_size=64, layers=2, heads=4, key_value_heads=2, context=LENGTH)
REWARD: dict[str, Any] = {
    "name": "reward.brief",
    "kind": "reward",
    "micro_batch": 8,
    "sequence_length": 3 * LENGTH,
    "heldout_share": 0.1,
    "steps": 30,
    "epochs": 8,
    "checkpoint_every": 30,
    "optimizer": {"learning_rate": 5e-3, "warmup_steps": 2, "weight_decay": 0.0},
}
RLHF: dict[str, Any] = {
    "name": "rlhf",
    "kind": "rlhf",
    "rewards": {"reward.brief": 1.0},
    "micro_batch": 16,
    "prompts": 32,
    "new_tokens": 24,
    "prompt_tokens": 32,
    "steps": 12,
    "updates": 2,
    "checkpoint_every": 4,
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1, "weight_decay": 0.0, "schedule": "constant"},
    "kl": {"coefficient": 0.1},
}
GRPO = RLHF | {"method": "grpo", "prompts": 8, "samples": 4}


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


def plan(
    place: Path,
    made: dict[str, str],
    stage: dict[str, Any],
    name: str = "rlhf",
    reward: dict[str, Any] = REWARD,
) -> StageSpec:
    """The spec of one stage of a recipe that ends with `stage`; store and home lie under `place`."""
    place.mkdir(parents=True, exist_ok=True)
    before = [
        {"name": "tokenizer", "kind": "tokenizer"},
        {"name": "pretrain", "kind": "pretrain", "steps": 1, "optimizer": {"learning_rate": 1e-3}},
        {"name": "sft", "kind": "sft", "steps": 1, "replay": 0.0, "optimizer": {"learning_rate": 1e-3}},
    ]
    (place / "recipe.yaml").write_text(yaml.safe_dump({"name": "brief", "stages": [*before, reward, stage]}))
    return plan_stage(
        str(place / "recipe.yaml"),
        name,
        store=str(place / "store"),
        home=str(place / "home"),
        instructions=made["instructions"],
        preferences=made["preferences"],
        parents={key: made[key] for key in ("sft", "reward.brief") if key in made},
    )


def check_learnt(job: Job) -> None:
    """The reward rose and answers got shorter, near the reference all the while."""
    lines = steps_of(job)
    rewards = [line["reward"] for line in lines]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.5
    assert lines[-1]["answer_tokens"] < lines[0]["answer_tokens"]
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-6), "it begins as its reference"
    assert 0 < lines[-1]["kl"] < 1
    assert all(0.5 < line["ratio"] < 2 for line in lines)
