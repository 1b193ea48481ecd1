"""DAG files: they parse fast and light, they are documented, and they say the order of tasks and nothing else."""

import ast
from pathlib import Path
from typing import Any

import pytest
from dags_parsing import ROOT, parse

MICRO = ROOT / "tests" / "end_to_end" / "micro.yaml"
CURATE = {
    "choose_snapshot": {"inventory"},
    "inventory": {"compute_signals", "write_verdicts"},
    "compute_signals": {"cluster_duplicates"},
    "cluster_duplicates": {"write_verdicts"},
    "write_verdicts": {"publish"},
    "publish": {"gate", "announce"},
    "gate": {"announce"},
    "announce": set(),
}
RETRAIN = {
    "roll_back": set(),
    "choose_domain": {"curate_records", "gate_records", "plan_training", "approve", "promote", "rebase"},
    "curate_records": {"gate_records", "plan_training"},
    "gate_records": {"plan_training", "approve"},
    "plan_training": {"train", "gate"},
    "train": {"evaluate", "approve", "promote"},
    "evaluate": {"gate"},
    "gate": {"approve"},
    "approve": {"promote"},
    "promote": {"announce", "rebase"},
    "announce": set(),
    "rebase": set(),
}
REPAIR = {
    "choose_shards": {"groups_to_compute", "groups_to_decide", "keep_record"},
    "groups_to_compute": {"compute_signals"},
    "groups_to_decide": {"write_verdicts"},
    "compute_signals": {"cluster_duplicates"},
    "cluster_duplicates": {"write_verdicts"},
    "write_verdicts": {"publish"},
    "publish": {"gate", "announce"},
    "gate": {"announce", "keep_record"},
    "announce": set(),
    "keep_record": set(),
}
TRAIN = {
    "choose_inputs": {"gate_instructions", "tokenizer.train", "pretrain.train", "sft.train"},
    "gate_instructions": {"tokenizer.train"},
    "tokenizer.train": {"tokenizer.evaluate", "pretrain.train", "sft.train"},
    "tokenizer.evaluate": {"tokenizer.gate"},
    "tokenizer.gate": {"pretrain.train"},
    "pretrain.train": {"pretrain.evaluate", "sft.train"},
    "pretrain.evaluate": {"pretrain.gate"},
    "pretrain.gate": {"sft.train"},
    "sft.train": {"sft.evaluate", "set_candidate"},
    "sft.evaluate": {"sft.gate"},
    "sft.gate": {"set_candidate"},
    "set_candidate": set(),
}
# What the recipe *tiny* has besides: it learns from preferences.
REWARDS = {
    **TRAIN,
    "choose_inputs": {*TRAIN["choose_inputs"], "measure_preferences", "reward.train", "rlhf.train"},
    "gate_instructions": {"tokenizer.train"},
    "measure_preferences": {"gate_preferences"},
    "gate_preferences": {"tokenizer.train"},
    "sft.train": {"sft.evaluate", "reward.train", "rlhf.train"},
    "sft.gate": {"reward.train"},
    "reward.train": {"reward.evaluate", "rlhf.train"},
    "reward.evaluate": {"reward.gate"},
    "reward.gate": {"rlhf.train"},
    "rlhf.train": {"rlhf.evaluate", "set_candidate"},
    "rlhf.evaluate": {"rlhf.gate"},
    "rlhf.gate": {"set_candidate"},
}
MAY_IMPORT = ("airflow.sdk", "dags", "plugins", "tasks.errors", "tasks.settings")
LONGEST_TASK = 24  # lines of a function in a DAG file; more than that is logic that belongs into `tasks`


def tasks_of(dag: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["__var"]["task_id"]: task["__var"] for task in dag["tasks"]}


def sources() -> list[Path]:
    return sorted((ROOT / "dags").glob("*.py"))


def test_files_parse_without_error_fast_and_light(parsed: dict[str, Any]) -> None:
    assert parsed["import_errors"] == {}
    assert {"curate_corpus", "train_cascade"} <= set(parsed["dags"])
    assert parsed["heavy"] == [], "heavy modules are imported inside tasks"
    for name, seconds in parsed["seconds"].items():
        assert seconds < 1.0, f"{name} takes {seconds:.2f} s of CPU to parse"


@pytest.mark.parametrize(
    "dag_id, order",
    [
        ("curate_corpus", CURATE),
        ("repair_shards", REPAIR),
        ("train_cascade", REWARDS),
        ("retrain_domain", RETRAIN),
        ("watch_domains", {"look": {"remember"}, "remember": set()}),
    ],
)
def test_order_of_tasks(parsed: dict[str, Any], dag_id: str, order: dict[str, set[str]]) -> None:
    found = {name: set(task.get("downstream_task_ids", [])) for name, task in tasks_of(parsed["dags"][dag_id]).items()}
    assert set(found) == set(order)
    for name, following in order.items():
        assert following <= found[name], f"{name} must come before {following - found[name]}"


def test_everything_is_documented(parsed: dict[str, Any]) -> None:
    for dag_id, dag in parsed["dags"].items():
        assert dag["description"] and dag["doc_md"].startswith("# "), dag_id
        assert "athanor" in dag["tags"] and len(dag["tags"]) >= 2
        for name, task in tasks_of(dag).items():
            kept = task.get("partial_kwargs", task)
            assert kept.get("doc_md"), f"{dag_id}.{name} has no documentation"
        for name, param in dag["params"]:
            assert param["description"] and param["schema"]["__var"]["title"], f"{dag_id}: parameter {name}"
        for name in tasks_of(dag):
            assert f"**{name.split('.')[-1]}**" in dag["doc_md"], f"{dag_id}'s documentation does not mention {name}"


def test_policies(parsed: dict[str, Any]) -> None:
    for dag_id, dag in parsed["dags"].items():
        assert dag["max_active_runs"] == (4 if dag_id == "retrain_domain" else 1)
        assert bool(dag.get("deadline")) == (dag_id != "watch_domains"), "a run that takes long is told of"
        counted = [alert["reference"]["__class_path"] for alert in dag.get("deadline") or []]
        assert set(counted) <= {"plugins.deadlines.RunCreated"}, "Airflow's own answers 500 when a run is cleared"
        for name, task in tasks_of(dag).items():
            kept = task.get("partial_kwargs", task)
            once = name.split(".")[-1].startswith(("gate", "approve", "roll_back"))
            assert (kept.get("retries", 0) == 0) == once, f"{name}: gates, approvals and a step back have no retries"
            assert kept.get("execution_timeout") or name == "approve", name
            assert kept["has_on_failure_callback"], f"{name}: nobody is told of its failure"
            assert kept.get("has_retry_policy") or once, name
            if name.split(".")[-1] in ("train", "evaluate"):
                assert kept["pool"] == "accelerator"
            if name.endswith((".train", ".evaluate")):
                assert kept["pool"] == "accelerator"


def test_groups_are_mapped_by_name_and_one_at_a_time_on_the_embedded_default(parsed: dict[str, Any]) -> None:
    tasks = tasks_of(parsed["dags"]["curate_corpus"])
    for name in ("compute_signals", "write_verdicts"):
        assert tasks[name]["_is_mapped"]
        assert "group" in tasks[name]["partial_kwargs"]["map_index_template"]
        assert tasks[name]["partial_kwargs"]["max_active_tis_per_dag"] == 1


def test_groups_run_side_by_side_with_an_external_dask(tmp_path: Path) -> None:
    dags = parse(tmp_path, ATHANOR_DASK_SCHEDULER="tcp://127.0.0.1:8786")["dags"]
    partial = tasks_of(dags["curate_corpus"])["compute_signals"]["partial_kwargs"]
    assert partial.get("max_active_tis_per_dag") is None


def test_an_asset_is_updated_by_tasks_that_do_nothing_else_or_are_skipped(parsed: dict[str, Any]) -> None:
    """A task that ends well updates its outlets whatever it did: so what may do nothing leaves that to another task."""
    updates = {
        f"{dag_id}.{name}": [outlet["__var"]["name"] for outlet in task["outlets"]]
        for dag_id, dag in parsed["dags"].items()
        for name, task in tasks_of(dag).items()
        if task.get("outlets")
    }
    assert {name: assets for name, assets in updates.items() if not name.startswith("train_cascade")} == {
        "curate_corpus.announce": ["curated_corpus"],
        "repair_shards.announce": ["curated_corpus"],
        "retrain_domain.announce": ["released_model"],
        "retrain_domain.roll_back": ["released_model"],
        "watch_domains.look": ["domain_data"],
    }


def test_schedules(parsed: dict[str, Any]) -> None:
    curate, train = (parsed["dags"][dag_id] for dag_id in ("curate_corpus", "train_cascade"))
    assert curate["catchup"] is False
    assert curate["timetable"]["__type"].endswith("CronPartitionTimetable")
    assert curate["timetable"]["__var"]["key_format"] == "%Y-%m-%d", "a partition is a snapshot date"
    assert curate["timetable"]["__var"]["run_offset"] == -1, "a day is complete when it is over"
    assert train["timetable"]["__type"].endswith("PartitionedAssetTimetable")
    assert "curated_corpus" in str(train["timetable"])


def test_a_recipe_of_its_own_gets_a_dag_of_its_own(tmp_path: Path) -> None:
    dags = parse(tmp_path, ATHANOR_RECIPE=str(MICRO))["dags"]
    assert {"train_cascade", "train_cascade_micro"} <= set(dags)
    assert set(tasks_of(dags["train_cascade_micro"])) == set(TRAIN)


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_no_logic_in_dag_files(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "datetime"):
            assert node.module is not None
            assert node.module.startswith((*MAY_IMPORT, "tasks.training.recipe")), f"{path.name} imports {node.module}"
    for part in ast.walk(tree):
        logic = isinstance(part, ast.ClassDef | ast.While | ast.Try) and not _only_skips(part)
        assert not logic, f"{path.name}: {ast.unparse(part)[:80]} belongs into tasks or plugins"
        if isinstance(part, ast.FunctionDef) and part.decorator_list:
            length = (part.end_lineno or 0) - part.lineno
            assert length <= LONGEST_TASK, f"{path.name}: {part.name} has {length} lines"


def _only_skips(node: ast.AST) -> bool:
    """A `try` that turns "nothing landed" into a skipped task is the scheduler's business."""
    return isinstance(node, ast.Try) and "AirflowSkipException" in ast.unparse(node)
