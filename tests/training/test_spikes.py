"""Spikes: what counts as one, what is passed over, and a real run on a poisoned batch."""

import math
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.corpus.artifact import read_artifact, write_artifact
from tasks.errors import AthanorError
from tasks.evaluation.stages import evaluate_stage
from tasks.tokens.shards import TokenShards
from tasks.training.data import Loader, PackedDocuments
from tasks.training.job import Job
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import Optimizer, PretrainStage, Rollback
from tasks.training.spikes import (
    Skip,
    Spike,
    SpikeWatch,
    culprits,
    describe,
    merged,
    remedy_of,
    report_html,
    shown,
    unit_losses,
)
from tasks.training.symptoms import changed
from tests.training.jobs import finish, steps_of


def falling(steps: int, seed: int = 0, noise: float = 0.05) -> list[float]:
    draw = np.random.default_rng(seed)
    return [4 + 5 * math.exp(-i / 20) + float(draw.normal(0, noise)) for i in range(steps)]


def watched(losses: list[float], norms: list[float] | None = None, folder: Path = Path("/nowhere")) -> list[Spike]:
    watch = SpikeWatch(folder, Rollback())
    pairs = zip(losses, norms or [1.0] * len(losses), strict=True)
    return [spike for i, (loss, norm) in enumerate(pairs) if (spike := watch.judge(i + 1, loss, norm))]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 0.3])
def test_an_ordinary_curve_has_no_spike(seed, noise):
    draw = np.random.default_rng(seed)
    norms = [float(np.exp(draw.normal(0, 0.5))) for _ in range(300)]
    assert watched(falling(300, seed, noise), norms) == []


def test_spikes_are_seen_and_do_not_become_usual():
    losses = falling(100)
    losses[60] += 1.5
    losses[61] = math.nan
    losses[62] = math.inf
    norms = [1.0] * 100
    norms[80], norms[81] = 1e3, math.inf
    found = watched(losses, norms)
    assert [(spike.step, spike.kind) for spike in found] == [
        (61, "loss_spike"),
        (62, "loss_not_a_number"),
        (63, "loss_not_a_number"),
        (81, "gradient_spike"),
        (82, "gradient_not_a_number"),
    ]
    assert "loss spike of" in describe(found[0]) and (found[0].z or 0) > 8


def test_a_restored_watch_judges_alike():
    losses = falling(80)
    whole = SpikeWatch(Path("/nowhere"), Rollback())
    for i, loss in enumerate(losses[:50]):
        whole.judge(i, loss, 1.0 + i % 7)
    again = SpikeWatch(Path("/nowhere"), Rollback())
    again.restore(orjson.loads(orjson.dumps(whole.state())))
    for loss in (losses[50], losses[50] + 0.3, losses[50] + 5):
        assert whole.judge(51, loss, 2.0) == again.judge(51, loss, 2.0)


@given(st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=4), st.integers(0, 60))
def test_windows_are_those_that_are_not_passed_over_in_order(skipped, steps):
    watch = SpikeWatch(Path("/nowhere"), Rollback())
    spike = Spike(step=1, kind="loss_spike", value=1.0, expected=1.0, z=9.0)
    watch.skips = [Skip(spike=spike, windows=windows, back_to=0) for windows in skipped]
    every = {window for windows in skipped for window in windows}
    expected = [window for window in range(200) if window not in every][:steps]
    assert [watch.window(step) for step in range(steps)] == expected


def test_rollbacks_are_bounded_and_slow_down(tmp_path):
    watch = SpikeWatch(tmp_path, Rollback(most=2, rate_factor=0.5))
    spike = Spike(step=30, kind="loss_spike", value=9.0, expected=4.0, z=50.0)
    for back_to in (24, 20):
        assert len(watch.plan(spike)) == 2
        watch.write(Skip(spike=spike, windows=watch.plan(spike), back_to=back_to))
        watch.reread()
    assert [watch.rate_factor(step) for step in (19, 20, 24)] == [1.0, 0.5, 0.25]
    assert sorted(window for skip in watch.skips for window in skip.windows) == [28, 29, 30, 31]
    with pytest.raises(AthanorError, match="after 2 rollbacks"):
        watch.plan(spike)


def test_documents_are_ranked_by_their_loss():
    losses = np.array([[1.0, 5.0, 5.0, 0.0], [2.0, 2.0, 9.0, 9.0]])
    labelled = np.array([[True, True, False, False], [True, True, False, False]])
    found = unit_losses(losses, labelled, [np.array([7, 8, 8]), np.array([9, 9, 9])])
    assert found == {7: (1.0, 1), 8: (5.0, 1), 9: (4.0, 2)}
    both = merged(found, {8: (3.0, 1), 10: (math.nan, 4)})
    assert [unit for unit, _, _ in culprits(both)] == [10, 8, 9, 7]


def test_the_remedy_is_a_change_of_the_recipe_that_is_allowed():
    for precision, careful in (("fp32", ()), ("bf16", ("attention", "logits"))):
        config = PretrainStage(
            name="p", kind="pretrain", steps=9, precision=precision, optimizer=Optimizer(learning_rate=0.1)
        )
        better = changed(config, remedy_of(config))
        assert better.optimizer.clip_norm == 0.5 and better.fp32_operations == careful


def test_the_report_masks_and_escapes():
    document = shown("d1", "web", "<script>alert(1)</script> write to ann@example.com", 9.5, 12)
    skip = Skip(spike=Spike(step=3, kind="loss_spike", value=9.0, expected=4.0, z=50.0), windows=[1, 2], back_to=0)
    page = report_html(skip, [document])
    assert "<script>" not in page and "&lt;script&gt;" in page and "ann@example.com" not in page


RECIPE = str(Path(__file__).parent / "spikes.yaml")
POISONED = 30  # window


def pretrain(place: Path, tokenizer: str, every: int = 8) -> StageSpec:
    recipe = place / "spikes.yaml"
    recipe.write_text(Path(RECIPE).read_text().replace("checkpoint_every: 8", f"checkpoint_every: {every}"))
    where = {"store": str(place / "store"), "home": str(place / "home")}
    return plan_stage(str(recipe), "pretrain", parents={"tokenizer": tokenizer}, **where)


@pytest.fixture(scope="module")
def clean(plan, tmp_path_factory) -> StageSpec:
    place = tmp_path_factory.mktemp("clean")
    tokenizer = plan("tokenizer", place)
    finish(tokenizer)
    spec = pretrain(place, tokenizer.artifact)
    finish(spec)
    return spec


def poison(artifact: str, target: Path, window: int, config: PretrainStage) -> set[str]:
    """A copy of a tokenizer artifact in which one window's sequences are noise of the rarest tokens. Returns the
    doc_ids that lie there."""
    shutil.copytree(artifact, target)
    known = read_artifact(artifact)
    (target / "artifact.json").unlink()
    source = PackedDocuments(TokenShards(target / "tokens", "train"))
    rare = np.argsort(source.shards.counts()[4:])[:60] + 4
    path = target / "tokens" / "train-00000.npy"
    ids, draw, named = np.load(path), np.random.default_rng(0), set()
    doc_ids = source.documents["doc_id"].to_pylist()
    for index in Loader(source, config, rank=0, pad=1).indices(window):
        named |= {doc_ids[unit] for unit in source.units(index)}
        place = slice(index * source.length, min((index + 1) * source.length, len(ids)))
        ids[place] = draw.choice(rare, size=len(ids[place]))
    np.save(path, ids)
    fields = known.model_dump(include={"kind", "stage", "config_hash", "code_version"})
    write_artifact(str(target), key=known.key + "-poisoned", **fields)
    return named


@pytest.mark.slow
@pytest.mark.parametrize(("every", "back_to"), [(8, 24), (40, 0)], ids=["to a checkpoint", "to the start"])
def test_a_poisoned_batch_is_rolled_back_and_named(clean, tmp_path, every, back_to):
    config = clean.config
    assert isinstance(config, PretrainStage)
    named = poison(clean.parents["tokenizer"].uri, tmp_path / "tokenizer", POISONED, config)
    spec = pretrain(tmp_path, str(tmp_path / "tokenizer"), every)
    job = finish(spec)
    events = [orjson.loads(line) for line in (job.folder / "events.jsonl").read_bytes().splitlines()]
    rolled = [event for event in events if event["event"] == "rolled_back"]
    assert len(rolled) == 1
    (event,) = rolled
    assert event["step"] == POISONED + 1 and event["kind"] == "loss_spike" and event["z"] > 8
    assert event["windows"] == [POISONED - 1, POISONED] and event["back_to"] == back_to
    worst = [document["id"] for document in event["documents"][:5]]
    assert set(worst) <= named, "the worst documents are the poisoned ones"
    page = Path(event["report"]).read_text()
    assert all(identity in page for identity in worst)
    assert "import " not in event["documents"][0]["text"], "what is shown is the poison, not the document's head"

    steps = steps_of(job)
    assert [line["step"] for line in steps] == list(range(1, 41)), "every step is reported once"
    factor = [
        line["learning_rate"] / other["learning_rate"]
        for line, other in zip(steps, steps_of(Job.load(clean.job)), strict=True)
    ]
    assert factor == pytest.approx([1.0] * back_to + [config.rollback.rate_factor] * (40 - back_to))
    recovered, undisturbed = evaluate_stage(spec)["heldout_loss"], evaluate_stage(clean)["heldout_loss"]
    assert recovered == pytest.approx(undisturbed, rel=0.03)
