"""What the engine and its checkpoints do on two real ranks; see `scenarios.py`, which one launch runs through."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.corpus.storage import to_json
from tasks.settings import REPOSITORY
from tasks.training.job import Job, Lease

SCENARIOS = Path(__file__).parent / "scenarios.py"


@pytest.fixture(scope="module")
def results(plan, tmp_path_factory) -> list[dict[str, Any]]:
    """Results of both ranks."""
    spec = plan("tokenizer", tmp_path_factory.mktemp("engine"))  # any spec will do: the job is only a place to write
    job = Job(spec.job)
    job.folder.mkdir(parents=True)
    (job.folder / "spec.json").write_bytes(to_json(spec.model_dump(mode="json")))
    lease = Lease(token=3, host="here", pid=os.getpid(), started=psutil.Process().create_time())
    (job.folder / "lease.json").write_bytes(to_json(lease.model_dump()))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"OMP_NUM_THREADS": "1", "LOCAL_SIZE": "2", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCENARIOS), str(job.folder), str(rank), str(os.getpid())],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=400)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-3000:] + said[1][-3000:]
    return [json.loads((job.folder / f"results-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def first(results) -> dict[str, Any]:
    return results[0]


def column(steps: list[dict[str, float]], name: str) -> list[float]:
    return [step[name] for step in steps]


@pytest.mark.parametrize("sequences", [16, 5, 1])
def test_accumulation_changes_nothing(first, sequences):
    """8×1 = 4×2 = 1×8 = 3s with a short last one, sequences of unequal length, ranks that have nothing to do."""
    runs = [first["accumulation"][f"{sequences} by {size}"] for size in (8, 4, 1, 3)]
    for run in runs[1:]:
        assert column(run, "loss") == pytest.approx(column(runs[0], "loss"), rel=1e-5)
        assert column(run, "norm") == pytest.approx(column(runs[0], "norm"), rel=1e-4)
    assert runs[0][-1]["loss"] < runs[0][0]["loss"] if sequences == 16 else math.isfinite(runs[0][-1]["loss"])


def test_bf16_tracks_fp32(first):
    found = first["precision"]
    assert column(found["bf16"], "loss") == pytest.approx(column(found["fp32"], "loss"), rel=0.02)
    assert column(found["bf16"], "loss") != column(found["fp32"], "loss")
    assert found["exported"] == ["torch.float32"] and found["exported beyond bf16"], "masters, not the rounded weights"


def test_chosen_operations_compute_in_fp32(first):
    found = first["precision"]
    assert 0 < found["error of bf16 with fp32"] < found["error of bf16"]


def test_fp16_scales_or_is_refused(first):
    """Where the device cannot compute in FP16 the recipe is refused, with what it can; else overflow is skipped."""
    found = first["precision"]
    if "fp16 refused" in found:
        assert "precision fp16" in found["fp16 refused"] and "fp32, bf16" in found["fp16 refused"]
        return
    losses = column(found["fp16"], "loss")
    assert all(map(math.isfinite, losses))
    applied = [step for step in found["fp16"] if not step["skipped"]]
    assert all(math.isfinite(step["norm"]) for step in applied) and applied
    assert losses[0] == pytest.approx(found["fp32"][0]["loss"], rel=0.01)


def test_activation_checkpointing_changes_no_gradient(first):
    found = first["switches"]
    assert found["checkpointed"] == found["plain"]
    assert found["dropout, checkpointed"] == found["dropout"], "the same masks are drawn again"


def test_dropout_acts_in_training_alone(first):
    found = first["switches"]
    assert found["first loss with dropout"] != found["plain"][0]["loss"]
    assert not found["dropout changes evaluation"]


def test_update_size_and_activation_range(first):
    found = first["switches"]
    assert found["ratio"] == pytest.approx(found["ratio by hand"], rel=1e-4)
    assert all(0 < step["activation"] < 1e3 for step in found["plain"])


def test_the_head_gives_the_same_logits_for_chosen_tokens(first):
    found = first["switches"]
    (rows, length, vocabulary), chosen, supervised = found["shapes"]
    assert chosen == [supervised, vocabulary] and supervised < rows * length
    assert found["chosen logits differ by"] < 1e-6 and found["labels are those"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("marker missing", "no complete.json"),
        ("marker cut", "complete.json is damaged"),
        ("marker empty", "complete.json is damaged"),
        ("rank file missing", "is missing"),
        ("rank file cut", "2000 bytes instead of"),
        ("bit flipped", "rank_1_mp_rank_00_optim_states.pt has another checksum"),
        ("bit flipped, rank 0", "rank_0_mp_rank_00_optim_states.pt has another checksum"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(results, damage, said):
    for rank in results:
        step, states, notes, equal = rank["damages"][damage]
        assert (step, states, equal) == (2, {"note": 2}, True)
        assert len(notes) == 1 and "step 3" in notes[0] and said in notes[0]


def test_no_checkpoint_left_begins_again(first):
    step, states, notes, _ = first["damages"]["none left"]
    assert (step, states) == (0, {})
    assert len(notes) == 4 and "training begins at step 0" in notes[3]


def test_training_goes_on_while_a_checkpoint_is_written(first):
    found = first["flight"]
    assert len(found["losses"]) == 3 and found["there while stepping"] == [], "three steps, and nothing on disk yet"
    assert found["waited"] and 1 in found["there when the second begins"], "the second waits for the first"
    assert found["steps"] == [1, 4] and found["is as when saved"], "what was saved is the state at that step"


def test_a_failed_write_is_an_error(first):
    found = first["full"]
    assert "could not be written" in found["said"] and "File too large" in found["said"]
    assert found["steps"] == [9], "what is whole stays; the half one never appears"


def test_frozen_units_stay_to_the_bit(first):
    """Three layers, another one every two steps, everything in the last two; decay and moments leave the rest alone."""
    attention, one, two, three = ["attention"], ["ffn.2"], ["ffn.1", "ffn.2"], ["ffn.0", "ffn.1", "ffn.2"]
    expected = [attention] * 2 + [attention + one] * 2 + [attention + two] * 2 + [attention + three] * 2
    assert first["unfreezing"]["moved"] == [*expected, *[[*attention, *three, "rest"]] * 2]


def test_unfreezing_resumes_to_the_bit(first):
    assert first["unfreezing"]["again"] == first["unfreezing"]["moved"][5:]
    assert first["unfreezing"]["equal"]


def test_a_step_with_nothing_to_learn_gives_zero(first):
    assert first["masked"] == {"loss": 0.0, "norm": 0.0, "moved": False}


def test_a_converted_checkpoint_goes_on_as_the_original(first):
    """Weights to the bit; moments too, or the next step would differ; weight decay of each group its own."""
    found = first["universal"]
    assert found["equal"] and found["decays"] == [0.1, 0.0]
    for original, converted in zip(*found["next"], strict=True):
        assert converted == original, "loss, gradient norm and the size of the update, to the bit"
    assert found["left"] == [], "neither the conversion nor a marker of it stays"


@pytest.mark.parametrize("name", ["tied", "untied", "tied resized", "untied resized", "frozen", "adapters"])
def test_what_two_ranks_hold_is_exported_to_the_bit(first, name):
    """Each of these has been written empty or wrong under ZeRO-3 by one tool or another."""
    found = first["exports"][name]
    assert found["wrong"] == []
    assert found["rows"] == [found["vocabulary"] + (24 if "resized" in name else 0)] * 2
    if name == "frozen":
        assert found["unchanged"] and all(".mlp." in weight for weight in found["unchanged"])
        assert len(found["unchanged"]) == 9, "three matrices of three layers"
    elif name == "adapters":
        assert {weight.rpartition("proj")[1] for weight in found["unchanged"]} == {""}, "every projection has learnt"
    else:
        assert found["unchanged"] == []
