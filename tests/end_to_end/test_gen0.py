"""All stages through real `airflow standalone`: from raw text to a policy that learnt from rewards, each one gated."""

import re
from pathlib import Path

import pytest

from tasks.corpus.artifact import read_artifact
from tasks.corpus.registry import read_registry
from tasks.corpus.storage import join, read_json
from tasks.sample.preferences import harvest_preferences
from tests.end_to_end.runner import Runner, small_landing

GEN0 = Path(__file__).with_name("gen0.yaml")


@pytest.mark.slow
def test_a_run_ends_with_gen_0(tmp_path: Path) -> None:
    data = small_landing(tmp_path / "landing")
    harvest_preferences(str(data), min_records=400, max_records=600)
    runner = Runner(tmp_path / "home", data, recipe=GEN0)
    process = runner.start("run")
    text = runner.output(process)
    assert process.returncode == 0, text
    assert runner.left() == []
    assert re.search(r"stage reward +[\d.]+ → [\d.]+ synthetic pairs put in order", text), text
    rewarded = r"stage rlhf +-?[\d.]+ → -?[\d.]+ reward, learnt from synthetic pairs, on held-out prompts"
    assert re.search(rewarded, text), text
    for gate in ("preferences", "sft", "reward", "rlhf"):
        assert re.search(rf"gate +{gate} +(passed|warning)", text), text
    candidate = read_artifact(read_registry(runner.store, "gen0")["candidate"]["uri"])
    assert candidate.stage == "rlhf" and candidate.metrics["generation"] == "Gen-0"
    assert f"{read_registry(runner.store, 'gen0')['candidate']['uri']}  (candidate, Gen-0)" in text
    metrics = read_json(join(runner.store, "evaluations", candidate.hash, "metrics.json"))
    assert metrics["heldout_reward"] > metrics["parent_heldout_reward"]
    assert metrics["heldout_kl"] < metrics["kl_bound"] and metrics["general_loss_rise"] < 0.03
    assert metrics["refusals_lost"] <= 0
