"""Artifacts to tune from, made by the library itself without a trainer, and records of several categories."""

import ast
import sysconfig
from pathlib import Path
from typing import Any

from tasks.corpus.artifact import file_hash, write_artifact
from tasks.corpus.document import doc_id
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import LocalStore
from tasks.tokens.documents import CuratedDocument
from tasks.tokens.shards import write_token_shards
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.model import export_model, new_model
from tasks.training.recipe import ModelShape

STDLIB = Path(sysconfig.get_paths()["stdlib"])
LENGTH, PEAK = 64, 1e-2
SHAPE = ModelShape(hidden_size=32, intermediate_size=64, layers=3, heads=4, key_value_heads=2, context=LENGTH)


def make_parent(folder: Path) -> str:
    """URI of a model artifact with random weights whose ancestor is a tokenizer artifact with token shards."""
    texts = [path.read_text(encoding="utf-8")[:3000] for path in sorted(STDLIB.glob("*.py"))[:40]]
    tokenizer = train_tokenizer(texts, 600, LENGTH)
    tokens, model = folder / "tokenizer", folder / "model"
    tokenizer.save_pretrained(tokens)
    write_token_shards(
        tokens / "tokens",
        [CuratedDocument(doc_id(text), text, "stdlib", "en", "code") for text in texts],
        tokenizer,
        tokenizer_hash=file_hash(LocalStore(tokens), "tokenizer.json").sha256,
        sequence_length=LENGTH,
        heldout_share=0.2,
    )
    first = _publish(tokens, "tokenizer", [], {})
    weights = new_model(SHAPE, tokenizer, seed=1)
    state = {name: value.detach() for name, value in weights.named_parameters()}
    export_model(state, weights, tokenizer, model)
    _publish(model, "model", [(first, str(tokens))], {"peak_learning_rate": PEAK})
    return str(model)


def _publish(folder: Path, kind: Any, parents: list[tuple[str, str]], metrics: dict[str, Any]) -> str:
    return write_artifact(
        str(folder),
        kind=kind,
        stage=kind,
        key="made",
        config_hash="",
        code_version=1,
        parents=[parent for parent, _ in parents],
        parent_uris=[uri for _, uri in parents],
        metrics=metrics,
    ).hash


def make_records(folder: Path) -> str:
    """URI of records of two categories: what a function is for (general), and how it is called (code)."""
    records: list[dict[str, Any]] = []
    for path in sorted(STDLIB.glob("*.py"))[:60]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                call = f"{node.name}({', '.join(argument.arg for argument in node.args.args)})"
                records.append(_record(f"What does {node.name} do?", said.split("\n")[0], "general"))
                records.append(_record(f"How is {node.name} called?", call, "code"))
    write_shard(folder / "records.jsonl.zst", records[:700])
    return str(folder)


def _record(asked: str, answer: str, category: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "source": "stdlib", "category": category}
