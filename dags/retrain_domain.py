"""# New records of a domain in, a retrained released model out

One run retrains one model line for one **domain** (`data_contracts/domains`), on what lies in `<data>/domains/<name>`.

1. **choose_domain** looks at the domain's folder, and takes the line's released model as the parent. A domain that
   nobody configured is refused; the same files are trained once, and skipped when they are announced again.
2. **curate_records** holds the records against rules, each other and the corpus' index. **gate_records** checks them.
3. **plan_training** counts the tokens that no released model of the domain saw, and goes on when there are enough.
4. **train** adapts the released model (one job under one key: domain, files, parent), **evaluate** measures it on the
   domain's held-out records and on general text, **gate** holds both against the contract.
5. **approve** asks a person in the UI, where the domain's `approval` says so.
6. **promote** releases it, by compare-and-swap on the parent. Has another model been released meanwhile, **rebase**
   starts the run again from that one, gates included, three times at most. **announce** updates the asset
   *released_model* when the run has released a model, and is skipped when it has not.
7. **roll_back** does one thing, when the form says so: it releases again what was released before, which updates the
   asset too.

**Schedule:** whenever *domain_data* is updated, with the domain as the partition: by `watch_domains`, or through REST:
`POST /api/v2/assets/events` with `{"asset_id": …, "partition_key": "legal"}`.
"""

from typing import Any

from airflow.sdk import DAG, Metadata, Param, PartitionedAssetTimetable, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import policies
from dags.assets import DOMAIN_DATA, RELEASED_MODEL
from dags.training_tasks import evaluate_and_gate
from plugins import retraining
from plugins.operators import GateOperator, TrainOperator
from tasks.settings import settings

with DAG(
    dag_id="retrain_domain",
    description="Retrain the released model for a domain on new records: curate, train, gate both ways, release",
    doc_md=__doc__,
    schedule=PartitionedAssetTimetable(assets=DOMAIN_DATA),
    max_active_runs=4,  # domains do not wait for each other's approvals; the release is a compare-and-swap
    deadline=policies.deadline(),
    tags=["athanor", "training", "domain"],
    render_template_as_native_obj=True,
    params={
        "domain": Param(
            None,
            type=["null", "string"],
            pattern="^[a-z][a-z0-9_]{0,39}$",
            title="Domain",
            description="Name of a domain in data_contracts/domains. Empty: the run's partition.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=1000,
            title="Reason",
            description="Why; kept with your name in the registry's history.",
        ),
        "roll_back": Param(
            False,
            type="boolean",
            title="Roll back",
            description="Train nothing: release again what was released before in the domain's model line.",
        ),
        "again": Param(
            False,
            type="boolean",
            title="Train again",
            description="Even if a model that was trained on the same files was released before.",
        ),
        "rebases": Param(
            0,
            type="integer",
            minimum=0,
            maximum=retraining.MOST_REBASES,
            title="Rebases",
            description="How often this retraining was started again because another model was released meanwhile.",
        ),
    },
):

    # No second try: it would go back one release more.
    @task(outlets=[RELEASED_MODEL], **{**policies.BOOKKEEPING, "retries": 0})
    def roll_back() -> dict[str, Any]:
        """Release again what was released before, when the form says so."""
        context = get_current_context()
        if not context["params"]["roll_back"]:
            raise AirflowSkipException("the form does not ask for it")
        back = retraining.roll_back(context["params"], context["dag_run"].triggering_user_name or "", settings())
        context["outlet_events"][RELEASED_MODEL].add_partitions(back["line"])
        return back

    @task(multiple_outputs=True, **policies.BOOKKEEPING)
    def choose_domain() -> dict[str, Any]:
        """The domain, what was delivered for it, and the released model."""
        context = get_current_context()
        if context["params"]["roll_back"]:
            raise AirflowSkipException("rolled back instead")
        try:
            return retraining.choose_domain(context["params"], context["dag_run"].partition_key, settings())
        except retraining.NothingToDo as nothing:
            raise AirflowSkipException(str(nothing)) from None

    @task(multiple_outputs=True, **policies.CURATION)
    def curate_records(chosen: dict[str, Any]) -> dict[str, Any]:
        """The delivery's records that are fit to train on."""
        return retraining.curate(chosen, settings())

    @task(multiple_outputs=True, **policies.BOOKKEEPING)
    def plan_training(chosen: dict[str, Any], curated: dict[str, Any]) -> dict[str, Any]:
        """The training's spec, when there are enough new tokens."""
        try:
            return retraining.plan(chosen, curated, get_current_context()["params"]["again"], settings())
        except retraining.NothingToDo as nothing:
            raise AirflowSkipException(str(nothing)) from None

    @task(**policies.BOOKKEEPING)
    def promote(chosen: dict[str, Any], trained: dict[str, Any], approval: Any) -> dict[str, Any]:
        """Release the model, if its parent is still the released one."""
        context = get_current_context()
        by = (approval.get("responded_by_user") or {}).get("name") or context["dag_run"].triggering_user_name
        why = context["params"]["reason"] or f"new records of domain {chosen['domain']}"
        run = context["dag_run"].run_id
        return retraining.release(chosen, trained, by or "retrain_domain", why, run, settings())

    @task(outlets=[RELEASED_MODEL], **policies.BOOKKEEPING)
    def announce(outcome: dict[str, Any]) -> Any:
        """Update the asset, if this run has changed what is released."""
        if not outcome["changed"]:
            raise AirflowSkipException("this run has released nothing")
        get_current_context()["outlet_events"][RELEASED_MODEL].add_partitions(outcome["line"])
        yield Metadata(RELEASED_MODEL, extra={name: outcome[name] for name in ("line", "artifact", "released")})

    roll_back()
    chosen: Any = choose_domain()
    curated: Any = curate_records(chosen)
    records = GateOperator(
        task_id="gate_records",
        contract="instructions",
        subject={"instructions": curated["records"]},
        key=chosen["hash"],
        **policies.GATE,
    )
    planned: Any = plan_training(chosen, curated)
    train = TrainOperator(task_id="train", spec=planned["spec"], **policies.TRAINING)
    _, gate = evaluate_and_gate(train.output, planned["contract"], "the domain's kind of training")
    approve = retraining.ApproveOperator(
        task_id="approve",
        chosen=chosen,
        trained=train.output,
        gates=[records.output, gate.output],
        **policies.APPROVAL,
    )
    trained: Any = train.output
    released: Any = promote(chosen, trained, approve.output)
    announce(released)
    records >> planned
    retraining.StartAgainOperator(
        task_id="rebase",
        trigger_dag_id="retrain_domain",
        outcome=released,
        chosen=chosen,
        **policies.BOOKKEEPING,
    )
