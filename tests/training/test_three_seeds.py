"""A preference whose right answer is known, three seeds: reward model, PPO, GRPO, and PPO with replay.

`pytest -s` prints the table that tasks/training/README.md shows.
"""

import numpy as np
import pytest

from tasks.evaluation.stages import evaluate_stage
from tests.training.jobs import finish, steps_of
from tests.training.talker import (
    GRPO,
    REWARD,
    RLHF,
    check_learnt,
    make_instructions,
    make_preferences,
    make_talker,
    plan,
)

REPLAY = RLHF | {"replay": {"prompts": 0.25, "answers": 0.5, "staleness": 2}}
STAGES = {"PPO": RLHF, "PPO with replay": REPLAY, "GRPO": GRPO}
BAR = 1.0  # of reward on the way from which it counts as learnt, for the answers that it took


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return {
        "sft": make_talker(folder / "talker"),
        "instructions": make_instructions(folder / "talk"),
        "preferences": make_preferences(folder / "pairs"),
    }


@pytest.fixture(scope="module", params=[0, 1, 2])
def judged(given, tmp_path_factory, request):
    """A seed, and what is given, with a reward model of that seed."""
    seed = request.param
    judge = plan(tmp_path_factory.mktemp("judge"), given, RLHF, "reward.brief", REWARD | {"seed": seed})
    finish(judge)
    judged = evaluate_stage(judge)
    low, high = judged["accuracy_low"], judged["accuracy_high"]
    print(f"\nseed {seed}: accuracy {judged['accuracy']:.3f}, {low:.3f} to {high:.3f}")
    assert judged["accuracy"] >= 0.9 and low > 0.5
    return seed, given | {"reward.brief": judge.artifact}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_it_is_learnt_with_every_seed(judged, tmp_path, name):
    seed, made = judged
    planned = plan(tmp_path, made, STAGES[name] | {"seed": seed}, reward=REWARD | {"seed": seed})
    job = finish(planned)
    check_learnt(job)
    lines, found = steps_of(job), evaluate_stage(planned)
    assert found["gain_low"] > 0 and 0 < found["heldout_kl"] < found["kl_bound"]
    reached = next((n for n, line in enumerate(lines, 1) if line["reward"] > lines[0]["reward"] + BAR), None)
    cells = [
        name, seed, f"{found['parent_heldout_reward']:.2f} → {found['heldout_reward']:.2f}",
        f"{found['gain_low']:.2f} to {found['gain_high']:.2f}", f"{found['heldout_kl']:.3f}",
        sum(line["supervised"] for line in lines), f"{sum(line['seconds'] for line in lines):.0f}",
        "-" if reached is None else reached,
        f"{np.mean([line['stale_weight'] for line in lines[1:]]):.2f}" if "stale_weight" in lines[-1] else "",
    ]  # fmt: skip
    print("\n| " + " | ".join(map(str, cells)) + " |")
