"""# Failed shards computed again, and no others

Started by hand, from the *Athanor* page or from this form, after the cause was mended.

1. **choose_shards** picks the failed shards of the snapshot that fit the form, and looks at their files anew;
   **groups_to_compute** are those that have one, **groups_to_decide** are all.
2. **compute_signals** computes what is missing, one mapped task per group; finished shards are recognised by their
   content and are not read.
3. **cluster_duplicates**, **write_verdicts**, **publish**, **gate** are those of `curate_corpus`, from stored signals:
   text is written anew only where survivors changed. The result is an undisturbed run's, byte for byte.
4. **announce** updates the asset *curated_corpus* once, which starts training.
5. **keep_record** puts down who repaired what and why, how many shards were computed and how many texts rewritten
   (`repairs/` beside the corpus; the page shows it).
"""

from typing import Any

from airflow.sdk import DAG, Param, get_current_context, task

from dags import policies
from dags.curation_tasks import announce, cluster_duplicates, compute_signals, gate, publish, write_verdicts
from tasks.settings import settings

with DAG(
    dag_id="repair_shards",
    description="Compute the signals of failed shards again, and publish their snapshot again",
    doc_md=__doc__,
    schedule=None,
    max_active_runs=1,  # two repairs of one snapshot would undo each other's plan
    deadline=policies.deadline(),
    tags=["athanor", "curation", "repair"],
    params={
        "snapshot": Param(
            type="string", format="date", title="Snapshot", description="Date of the snapshot that was curated."
        ),
        "groups": Param(
            [],
            type="array",
            items={"type": "string"},
            title="Groups",
            description="Names such as group-03, one a line. Empty: every group.",
        ),
        "pattern": Param(
            "",
            type="string",
            maxLength=300,
            title="Path pattern",
            description="Of shards below the landing folder, e.g. web/part-0*.jsonl.zst. Empty: any.",
        ),
        "only_failed": Param(
            True,
            type="boolean",
            title="Only failed shards",
            description="Off: finished shards that fit are computed again as well.",
        ),
        "reason": Param(
            type="string",
            minLength=3,
            maxLength=1000,
            title="Reason",
            description="What was wrong and what was done about it; kept with your name.",
        ),
    },
):

    @task(multiple_outputs=True, **policies.BOOKKEEPING)
    def choose_shards() -> dict[str, Any]:
        """The shards that the form asks for, and their inventory as it is now."""
        from plugins import inputs

        return inputs.choose_repair(get_current_context()["params"], settings())

    @task(**policies.BOOKKEEPING)
    def keep_record(chosen: dict[str, Any], published: dict[str, Any], computed: Any, decided: Any) -> dict[str, Any]:
        """Who repaired what, why, and what it took."""
        from tasks.curation.repair import record_repair

        run, params = get_current_context()["dag_run"], get_current_context()["params"]
        facts = {
            "by": run.triggering_user_name or "",
            "reason": params["reason"],
            "shards": chosen["shards"],
            "replaced": chosen["replaced"],
            "computed": sum(group["shards"] - group["reused"] for group in computed),
            "rewritten": sum(group["rewritten"] for group in decided),
            "before": chosen["before"],
            "after": published["hash"],
        }
        return {"record": record_repair(chosen["output"], run.run_id, **facts), **facts}

    @task(**policies.BOOKKEEPING)
    def groups_to_compute(chosen: dict[str, Any]) -> list[str]:
        """Names of the groups that have a shard to repair."""
        return chosen["groups"]

    @task(**policies.BOOKKEEPING)
    def groups_to_decide(chosen: dict[str, Any]) -> list[str]:
        """Names of all groups: survivors may change in any."""
        return chosen["all_groups"]

    chosen: Any = choose_shards()
    output = chosen["output"]
    signals = compute_signals.partial(output=output).expand(group=groups_to_compute(chosen))
    clusters = cluster_duplicates(output, chosen["index"])
    verdicts = write_verdicts.partial(output=output).expand(group=groups_to_decide(chosen))
    published: Any = publish(output)
    held = gate(output, published)
    signals >> clusters >> verdicts >> published >> held
    held >> announce(chosen["snapshot"], output, published)
    held >> keep_record(chosen, published, signals, verdicts)
