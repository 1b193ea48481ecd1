"""# Curated corpus in, candidate model out

One DAG per recipe of `data_contracts/recipes`: `train_cascade` for the recipe *tiny*, else `train_cascade_<recipe>`.
Its stages, in order, are task groups of three:

- **train** submits a training job and waits without holding a worker. The job lives in a process group of its own, with
  a folder (log, progress, exit record); whoever comes back finds it again. Its key is the hash of parent, data and
  recipe: the same inputs train once, and a finished stage is reused.
- **evaluate** measures the artifact on held-out data, before and after.
- **gate** holds the figures against the contract of that kind of stage; a refused stage goes no further.

**choose_inputs** takes the corpus from the asset event that started the run, or from the form. **gate_instructions**
checks the instruction records before anything trains. Where a stage learns from preferences, **measure_preferences**
counts those records and how far their annotators agree, and **gate_preferences** decides on it. **set_candidate** makes
the last model the line's candidate.

**Schedule:** whenever *curated_corpus* is updated; one partition per snapshot date. Started by hand, the form picks the
corpus, the parent artifact and the first and last stage.

**When a stage fails:** the task's log ends with the job's own last lines. Clearing the task continues from the last
checkpoint.
"""

from typing import Any

from airflow.sdk import (
    DAG,
    Metadata,
    Param,
    PartitionedAssetTimetable,
    TaskGroup,
    TriggerRule,
    get_current_context,
    task,
)

from dags import policies
from dags.assets import CANDIDATE_MODEL, CURATED_CORPUS
from dags.training_tasks import evaluate_and_gate
from plugins.inputs import cascade_dag_id
from plugins.operators import GateOperator, TrainStageOperator
from tasks.settings import CONTRACTS, settings
from tasks.training.recipe import Recipe, load_recipe

CONTRACT_OF_KIND = {"tokenizer": "tokens"}  # else the contract is named like the kind of stage


def draw(recipe: Recipe, source: str) -> None:
    """The DAG of one recipe; `source` is the name or path by which tasks load it again."""
    stages = [stage.name for stage in recipe.stages]
    with DAG(
        dag_id=cascade_dag_id(recipe.name),
        description=f"Train the recipe '{recipe.name}': {' → '.join(stages)}, each behind its gate",
        doc_md=__doc__,
        schedule=PartitionedAssetTimetable(assets=CURATED_CORPUS),
        max_active_runs=1,  # the accelerator takes one job at a time anyway
        deadline=policies.deadline(),
        tags=["athanor", "training", recipe.name],
        params=form(stages),
        render_template_as_native_obj=True,
    ):
        inputs: Any = choose_inputs(source)
        before: Any = GateOperator(
            task_id="gate_instructions",
            contract="instructions",
            subject={"instructions": inputs["instructions"]},
            key=inputs["instructions_hash"],
            **policies.GATE,
        )
        gates = [before, *gate_of_preferences(inputs)] if "preferences" in recipe.data else [before]
        trained: list[Any] = []
        for stage in recipe.stages:
            with TaskGroup(stage.name, tooltip=f"{stage.kind}: train, evaluate, gate"):
                train = TrainStageOperator(
                    task_id="train",
                    recipe=source,
                    stage=stage.name,
                    inputs=inputs,
                    upstream=[earlier.output for earlier in trained],
                    trigger_rule=TriggerRule.NONE_FAILED,  # stages before the first one are skipped, not failed
                    **policies.TRAINING,
                )
                contract = CONTRACT_OF_KIND.get(stage.kind, stage.kind)
                _, gate = evaluate_and_gate(train.output, contract, f"the kind of stage *{stage.kind}*")
                gates >> train
            gates = [gate]
            trained.append(train)
        gates >> set_candidate(recipe.name, trained[-1].output)


def gate_of_preferences(inputs: Any) -> list[Any]:
    """The gate of the preference records, behind their measure."""
    measured: Any = measure_preferences(inputs["preferences"])
    gate = GateOperator(
        task_id="gate_preferences",
        contract="preferences",
        subject={"metrics": measured},
        key=inputs["preferences_hash"],
        **policies.GATE,
    )
    measured >> gate
    return [gate]


def form(stages: list[str]) -> dict[str, Param]:
    """The form of a run that a person starts."""
    uri: dict[str, Any] = {"type": ["null", "string"], "minLength": 1}
    return {
        "corpus": Param(
            None,
            **uri,
            title="Curated corpus",
            description="URI of a curated corpus. Empty: the one that was announced, else the newest in the store.",
        ),
        "instructions": Param(
            None,
            **uri,
            title="Instruction records",
            description="URI of a folder of instruction records. Empty: `instructions` in the landing zone.",
        ),
        "preferences": Param(
            None,
            **uri,
            title="Preference records",
            description="URI of a folder of preference records, for recipes that learn from them. "
            "Empty: `preferences` in the landing zone.",
        ),
        "parent": Param(
            None,
            **uri,
            title="Parent artifact",
            description="URI of the artifact that the first stage starts from. "
            "Empty: the one that this recipe made from the same corpus.",
        ),
        "first_stage": Param(
            stages[0],
            type="string",
            enum=stages,
            title="First stage",
            description="Earlier stages are skipped.",
        ),
        "last_stage": Param(
            stages[-1],
            type="string",
            enum=stages,
            title="Last stage",
            description="Later stages are skipped; only a run to the last stage sets a candidate.",
        ),
    }


@task(task_id="choose_inputs", multiple_outputs=True, **policies.BOOKKEEPING)
def choose_inputs(recipe: str) -> dict[str, Any]:
    """Corpus, instruction records, parents and the range of stages of this run."""
    from plugins import inputs

    context = get_current_context()
    events = [event for group in context["triggering_asset_events"].values() for event in group]
    return inputs.choose_inputs(recipe, context["params"], events, settings())


@task(task_id="measure_preferences", **policies.BOOKKEEPING)
def measure_preferences(preferences: str) -> str:
    """Count the preference records and measure how far their annotators agree; returns where the figures are."""
    from tasks.evaluation.preferences import measure_preferences
    from tasks.training.plan import identify

    return measure_preferences(identify(preferences), settings().store)


@task(outlets=[CANDIDATE_MODEL], **policies.BOOKKEEPING)
def set_candidate(line: str, trained: dict[str, Any]) -> Any:
    """Point the model line's `candidate` at the last stage's artifact."""
    from tasks.corpus.registry import promote

    promote(settings().store, line, trained["artifact"], to="candidate")
    partition = get_current_context()["dag_run"].partition_key
    if partition:
        get_current_context()["outlet_events"][CANDIDATE_MODEL].add_partitions(partition)
    yield Metadata(CANDIDATE_MODEL, extra={"line": line, "artifact": trained["artifact"], "hash": trained["hash"]})


def sources() -> list[str]:
    """Names of the recipes in data_contracts/recipes, and the configured one when it lies elsewhere."""
    names = sorted(path.stem for path in (CONTRACTS / "recipes").glob("*.yaml"))
    configured = settings().recipe
    return names if configured in names else [*names, configured]


for name in sources():
    draw(load_recipe(name), name)
