"""A small real corpus (the standard library's sources and some Chinese) and instruction records made from it."""

import ast
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.artifact import write_artifact
from tasks.corpus.document import doc_id
from tasks.corpus.shards import write_shard
from tasks.training.plan import StageSpec, plan_stage

RECIPE = str(Path(__file__).parent / "micro.yaml")
STDLIB = Path(sysconfig.get_paths()["stdlib"])
CHINESE = (
    "数据先被整理，然后才用于训练。",
    "每一份文档都有自己的来历，丢弃时必须说明原因。",
    "模型的好坏要用没见过的文本来衡量。",
)


def _row(text: str, source: str, language: str, kind: str) -> dict[str, Any]:
    return {"doc_id": doc_id(text), "text": text, "source": source, "language": language, "kind": kind}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a curated corpus of two shards."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = []
    for path in sorted(STDLIB.glob("*.py"))[:70]:
        text = path.read_text(encoding="utf-8")
        rows.append(_row(text[:8000], "stdlib", "en", "code"))
        if prose := ast.get_docstring(ast.parse(text)):
            rows.append(_row(prose[:4000], "docstrings", "en", "prose"))
    rows += [_row(line * n, "zh", "zh", "prose") for line in CHINESE for n in range(1, 9)]
    rows = list({row["doc_id"]: row for row in rows}.values())
    (folder / "curated").mkdir()
    for i, part in enumerate((rows[::2], rows[1::2])):
        pq.write_table(pa.Table.from_pylist(part), folder / "curated" / f"part-{i:05d}.parquet")
    write_artifact(str(folder), kind="corpus", stage="curate", key="test", config_hash="", code_version=1)
    return str(folder)


@pytest.fixture(scope="session")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """URI of a folder of instruction records: functions and what their docstrings say."""
    folder = tmp_path_factory.mktemp("instructions")
    records = []
    for path in sorted(STDLIB.glob("*.py"))[:70]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                asked = {"role": "user", "content": f"What does {node.name} do?"}
                answer = {"role": "assistant", "content": said.split("\n")[0]}
                records.append({"id": f"{path.stem}.{node.name}", "messages": [asked, answer]})
    write_shard(folder / "docstrings.jsonl.zst", records[:400])
    return str(folder)


@pytest.fixture(scope="session")
def plan(corpus: str, instructions: str) -> Any:
    """`plan(stage, place, parents)` → spec of a stage of the micro recipe, with store and home under `place`."""

    def make(stage: str, place: Path, parents: dict[str, str] | None = None) -> StageSpec:
        return plan_stage(
            RECIPE,
            stage,
            store=str(place / "store"),
            home=str(place / "home"),
            corpus=corpus,
            instructions=instructions,
            parents=parents,
        )

    return make
