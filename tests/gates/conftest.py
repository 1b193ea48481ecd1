"""Small sound subjects, written as the pipeline writes them; a test damages one and looks what the gate says."""

import copy
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.artifact import write_artifact
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import write_json

DOCUMENTS = 120  # kept ones, over two shards
SHARDS = ("books/part-0.jsonl.zst", "web/part-0.parquet")


def document(index: int) -> dict[str, Any]:
    """One curated document, unlike every other."""
    words = " ".join(f"word{index * 7 + offset}" for offset in range(40))
    return {
        "doc_id": f"{index:032x}",
        "text": f"Document {index} tells of {words}.",
        "source": "books" if index % 2 else "web",
        "source_id": None,
        "url": None,
        "timestamp": None,
        "language": ("en", "zh")[index % 2],
        "language_score": 0.9,
        "kind": "prose" if index % 3 else "code",
        "shard": SHARDS[index % 2],
        "shard_checksum": "c" * 64,
        "row": index,
        "occurrence": 0,
        "extra": "{}",
    }


def counts(read: int, kept: int, dropped: int, quarantined: int) -> dict[str, Any]:
    """Counts of a report or a shard, at 300 bytes a document."""
    names = ("read", "kept", "dropped", "quarantined")
    documents = dict(zip(names, (read, kept, dropped, quarantined), strict=True))
    return {
        **documents,
        "unreadable": 0,
        "unreadable_bytes": 0,
        "bytes": {**{name: 300 * count for name, count in documents.items()}, "written": 290 * kept},
    }


@pytest.fixture
def corpus() -> dict[str, Any]:
    """A sound corpus in memory: `report`, and `documents` by curated file."""
    documents = [document(index) for index in range(DOCUMENTS)]
    report = {
        "schema_version": 1,
        "snapshot": "2025-01-01",
        **counts(240, DOCUMENTS, 119, 1),
        "reasons": {"min_characters": {"documents": 119, "bytes": 35700}},
        "languages": {"en": {"kept": 60}, "zh": {"kept": 60}},
        "sources": {"books": {"kept": 60}, "web": {"kept": 60}},
        "kinds": {},
        "clusters": {"documents": 130, "duplicates": {"duplicate_exact": 4, "duplicate_near": 6}},
        "shards": [
            {"shard": SHARDS[0], **counts(120, 60, 60, 0)},
            {"shard": SHARDS[1], **counts(120, 60, 59, 1)},
        ],
        "problems": [],
        "problems_total": 1,
    }
    return {"report": report, "documents": {"a": documents[:60], "b": documents[60:], "c": []}}


@pytest.fixture
def write_corpus(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Write a corpus as curation publishes it; returns its URI."""

    def write(corpus: dict[str, Any]) -> str:
        folder = tmp_path / "corpus"
        (folder / "curated").mkdir(parents=True, exist_ok=True)
        columns = list(document(0))
        for name, documents in corpus["documents"].items():
            arrays = {column: strings([item[column] for item in documents], column) for column in columns}
            pq.write_table(pa.table(arrays), folder / "curated" / f"{name}.parquet", row_group_size=16)
        write_json(str(folder / "report.json"), corpus["report"])
        write_artifact(
            str(folder),
            only=("curated/", "report.json"),
            kind="corpus",
            stage="curate",
            key="k" * 32,
            config_hash="0" * 64,
            code_version=1,
        )
        return str(folder)

    return write


def strings(values: list[Any], column: str) -> pa.Array:
    """A column; text given as bytes goes in unchecked, valid UTF-8 or not."""
    if column == "language_score":
        return pa.array(values, pa.float64())
    if column in ("row", "occurrence"):
        return pa.array(values, pa.int64())
    raw = pa.array([value.encode() if isinstance(value, str) else value for value in values], pa.binary())
    return pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])


@pytest.fixture
def instructions() -> list[dict[str, Any]]:
    """Sound instruction records in memory."""
    return [
        {
            "id": f"r{index}",
            "source": "docstrings",
            "category": "code",
            "messages": [
                *([{"role": "system", "content": "You explain code."}] if index % 5 == 0 else []),
                {"role": "user", "content": f"What does function_{index} do?"},
                {"role": "assistant", "content": f"It returns the number {index} of the series."},
            ],
        }
        for index in range(600)
    ]


@pytest.fixture
def write_instructions(tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    """Write records into a folder; returns its URI."""

    def write(records: list[dict[str, Any]], name: str = "docstrings.jsonl.gz") -> str:
        folder = tmp_path / "instructions"
        folder.mkdir(exist_ok=True)
        write_shard(folder / name, copy.deepcopy(records))
        return str(folder)

    return write


@pytest.fixture(scope="session")
def sound_tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer artifact written by the tokenizer stage's own functions, without `artifact.json`."""
    import hashlib

    from tasks.tokens.documents import CuratedDocument
    from tasks.tokens.shards import write_token_shards
    from tasks.tokens.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("tokens")
    draw = random.Random(0)
    words = ["".join(draw.choices("aeinorstlmd", k=draw.randint(2, 8))) for _ in range(2000)]
    texts = [" ".join(draw.choices(words, k=300)) for _ in range(1600)]
    documents = [CuratedDocument(f"{i:032x}", text, "books", "en", "prose") for i, text in enumerate(texts)]
    tokenizer = train_tokenizer(texts[:200], 512, 64)
    tokenizer.save_pretrained(folder)
    digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    write_token_shards(
        folder / "tokens",
        documents,
        tokenizer,
        tokenizer_hash=digest,
        sequence_length=64,
        heldout_share=0.1,
        shard_tokens=2**18,
    )
    return folder


@pytest.fixture
def write_tokens(tmp_path: Path, sound_tokens: Path) -> Callable[[Callable[[Path], None]], str]:
    """Copy the sound tokens, let a damage loose on the copy, seal it; returns its URI."""

    def write(damage: Callable[[Path], None]) -> str:
        folder = tmp_path / "tokenizer"
        shutil.copytree(sound_tokens, folder)
        damage(folder)
        write_artifact(str(folder), kind="tokenizer", stage="tokenizer", key="k", config_hash="0", code_version=1)
        return str(folder)

    return write
