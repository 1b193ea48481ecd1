"""A whole cascade in a terminal: train → evaluate → gate, stage after stage, without Airflow."""

from collections.abc import Callable
from typing import Any

from tasks.corpus.artifact import read_artifact
from tasks.corpus.registry import promote
from tasks.corpus.storage import join
from tasks.errors import AthanorError, DataError
from tasks.evaluation.preferences import measure_preferences
from tasks.evaluation.report import report_uri
from tasks.evaluation.stages import evaluate_stage
from tasks.gates.gate import require, run_gate
from tasks.training.job import submit
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import Recipe, load_recipe

CONTRACTS = {"tokenizer": "tokens"}  # of a stage's kind, where the contract is not named like it
Tell = Callable[[str], None]


def run_cascade(
    recipe: str,
    *,
    store: str,
    home: str,
    corpus: str = "",
    instructions: str = "",
    preferences: str = "",
    first: str | None = None,
    last: str | None = None,
    tell: Tell = print,
) -> dict[str, str]:
    """Run the stages from `first` to `last`; finished ones are reused. Returns stage → artifact URI.

    A run to the recipe's last stage makes its artifact the model line's candidate. Raises GateRefused when a gate
    refuses, AthanorError when a stage fails; nothing after it is run.
    """
    plan = load_recipe(recipe)
    before, wanted = _range(plan, first, last)
    for note in plan.notes():
        tell(f"note: {note}")
    made: dict[str, str] = {}
    for stage in [*before, *wanted]:
        spec = plan_stage(
            recipe,
            stage,
            store=store,
            home=home,
            corpus=corpus,
            instructions=instructions,
            preferences=preferences,
            parents=made,
        )
        if stage in before and not spec.finished:
            raise DataError(f"stage '{stage}' was not trained from these inputs yet; begin with it (--first {stage})")
        if stage in wanted:
            run_stage(spec, tell)
        made[stage] = spec.artifact
    if wanted[-1] == plan.stages[-1].name:
        promote(store, plan.name, made[wanted[-1]], to="candidate")
        tell(f"candidate of line {plan.name}: {made[wanted[-1]]}")
    return made


def run_stage(spec: StageSpec, tell: Tell = print) -> dict[str, Any]:
    """Train, evaluate and gate one stage. Returns its metrics."""
    for name, item in spec.data.items():
        if name == "instructions":
            _gate(spec, name, {name: item.uri}, tell)
        elif name == "preferences":
            _gate(spec, name, {"metrics": measure_preferences(item, spec.store)}, tell)
    tell(f"{spec.stage}: {'artifact is there already' if spec.finished else f'training, job {spec.job}'}")
    job = submit(spec)
    try:
        status = job.wait(on_progress=lambda line: tell(describe(line)))
    except BaseException:  # an interrupt must not leave the trainer running behind the terminal's back
        job.cancel()
        raise
    if status.state != "succeeded":
        raise AthanorError(f"stage '{spec.stage}' {status.state}: {status.message}")
    metrics = evaluate_stage(spec)
    tell(f"{spec.stage}: {metrics['measure']}: {metrics['before']:.4f} → {metrics['after']:.4f}")
    made = read_artifact(spec.artifact).hash
    tell(f"{spec.stage}: report {report_uri(spec.store, made)}")
    where = join(spec.store, "evaluations", made, "metrics.json")
    _gate(spec, CONTRACTS.get(spec.kind, spec.kind), {"metrics": where, "tokens": spec.artifact}, tell)
    return metrics


def describe(line: dict[str, Any]) -> str:
    """One line of progress for a person."""
    place = f"{line['stage']} {line['step']}/{line['steps']}"
    if "loss" not in line:
        return f"{place}: {line.get('what', '')}"
    reward = f", reward {line['reward']:.4f}" if "reward" in line else ""
    return f"{place}: loss {line['loss']:.4f}{reward}, {line['tokens_per_second']:,.0f} tokens/s"


def _gate(spec: StageSpec, contract: str, subject: dict[str, str], tell: Tell) -> None:
    folder = f"{spec.stage}.{contract}" if contract in spec.data else spec.stage
    result = run_gate(contract, subject, join(spec.store, "gates", folder, spec.key))
    tell(f"{spec.stage}: gate {contract}: {result.verdict}, {result.report}")
    require(result)


def _range(plan: Recipe, first: str | None, last: str | None) -> tuple[list[str], list[str]]:
    """Names of the stages before the first one, and of those to run."""
    names = [stage.name for stage in plan.stages]
    start = names.index(plan.stage(first).name) if first else 0
    end = names.index(plan.stage(last).name) if last else len(names) - 1
    if end < start:
        raise DataError(f"stage '{last}' comes before '{first}' in recipe {plan.name}; swap --first and --last")
    return names[:start], names[start : end + 1]
