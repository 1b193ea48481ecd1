"""What is learnt from again: priorities of answers and prompts, by domain, and a state that is JSON."""

import json

import numpy as np
import pytest

from tasks.training.recipe import Replay
from tasks.training.rl.memory import Memory


def told(prompt: int, domain: str, error: float, embedding: list[float], length: int = 3) -> dict:
    answer = {"prompt": prompt, "domain": domain, "ids": [prompt] * length, "log_probs": [-1.0] * length}
    return answer | {"errors": [error] * length, "embedding": embedding}


def filled(**changes: float) -> Memory:
    memory = Memory(Replay.model_validate({"answers": 0.5, "prompts": 0.5, **changes}), seed=0)
    memory.remember([told(n, "code", float(n), [1.0, 0.0]) for n in range(4)], 0)
    memory.remember([told(n, "law", 1.0, [0.0, 1.0]) for n in (10, 11)], 1)
    return memory


def test_answers_are_recalled_by_priority_and_domain():
    memory = filled(alpha=1.0)
    found = memory.recall(["code"], 6000, 2)
    counts = np.bincount([item["prompt"] for item in found], minlength=4) / 6000
    np.testing.assert_allclose(counts, np.arange(4) / 6, atol=0.03)
    assert "errors" not in found[0] and found[0]["log_probs"] == [-1.0] * 3
    both = memory.recall(["code", "law", "medicine"], 1001, 2)
    domains = [item["domain"] for item in both]
    assert domains == [("code", "law")[place % 2] for place in range(1001)], "a domain with nothing is passed over"


def test_what_is_too_old_is_not_recalled():
    memory = filled(staleness=3)
    assert memory.recall(["code"], 4, 3) and memory.recall(["code"], 4, 4) == []
    assert memory.recall(["law"], 4, 4)


def test_an_answer_far_from_what_its_domain_is_about_counts_less():
    memory = Memory(Replay(answers=1.0, semantic=0.5), seed=0)
    memory.remember([told(n, "code", 1.0, [1.0, 0.0]) for n in range(9)] + [told(9, "code", 1.0, [0.0, 1.0])], 0)
    near, far = (memory.priority("code", np.ones(3), np.array(where)) for where in ([1.0, 0.0], [0.0, 1.0]))
    assert near == pytest.approx(0.5 + 0.5 * 9 / np.hypot(9, 1)) and far == pytest.approx(0.5 + 0.5 / np.hypot(9, 1))
    indifferent = Memory(Replay(answers=1.0, semantic=0.0), seed=0)
    indifferent.remember([told(0, "code", 2.0, [0.0, 0.0])], 0)
    assert indifferent.priority("code", np.full(3, 2.0), np.array([-1.0, 0.0])) == 2.0


def test_a_share_of_the_prompts_is_chosen_by_priority():
    memory = filled(alpha=1.0)
    chosen = memory.choose_prompts([20, 21, 22, 23], ["code", "law", "code", "law"], 2)
    assert chosen[0] in (1, 2, 3) and chosen[1] in (10, 11) and chosen[2:] == [22, 23]
    assert memory.choose_prompts([20, 21], ["medicine", "code"], 2) == [20, 21], "nothing is known of medicine"
    assert Memory(Replay(answers=1.0), 0).choose_prompts([5, 6], ["code", "code"], 0) == [5, 6]


def test_its_state_is_json_and_goes_on_alike():
    memory, again = filled(), Memory(Replay(answers=0.5, prompts=0.5), seed=0)
    again.restore(json.loads(json.dumps(memory.state())))
    for one in (memory, again):
        one.remember([told(7, "code", 0.3, [0.5, 0.5])], 2)
    assert memory.recall(["code", "law"], 20, 3) == again.recall(["code", "law"], 20, 3)
    assert json.dumps(memory.state()) == json.dumps(again.state())
