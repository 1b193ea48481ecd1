"""# Raw shards in, curated corpus out

One run curates one **snapshot**: the shards that landed on one date.

1. **choose_snapshot**, **inventory** pick the date, list its shards and freeze their groups in a manifest.
2. **compute_signals** reads every document once, one mapped task per group: counts, languages, MinHash signatures.
3. **cluster_duplicates** finds exact and near duplicates over the whole snapshot and of earlier dates (`<store>/index`)
   from the stored signals, and paragraphs and sentences that repeat within the snapshot.
4. **write_verdicts** decides on every document (kept, dropped, quarantined, with every rule that failed) and writes the
   curated text, one mapped task per group.
5. **publish** checks that nothing was lost (read = kept + dropped + quarantined) and seals the corpus.
6. **gate** holds the corpus against `data_contracts/curated.yaml`; a refused corpus goes no further.
7. **announce** updates the asset *curated_corpus*, which starts training.

**Schedule:** daily at 02:00 UTC for the day before; a date with no snapshot is skipped. A range of dates is curated
with `airflow backfill create --dag-id curate_corpus --from-date … --to-date …`. Started by hand, the form picks the
snapshot.

**When a group fails:** its log names the shard and the remedy, and so does the *Athanor* page. Repair the cause, then
clear the red square, or start `repair_shards`: finished shards are not computed again. With
`ATHANOR_FAILED_BUDGET=0.005` a run goes on without one shard of 200, says so everywhere, and is repaired later.
"""

from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import policies
from dags.curation_tasks import announce, cluster_duplicates, compute_signals, gate, publish, write_verdicts
from tasks.settings import settings

with DAG(
    dag_id="curate_corpus",
    description="Curate one snapshot of raw shards: signals, duplicates, verdicts, text, gate",
    doc_md=__doc__,
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    catchup=False,
    max_active_runs=1,  # duplicates are decided against earlier survivors: one curation at a time
    deadline=policies.deadline(),
    tags=["athanor", "curation"],
    params={
        "snapshot": Param(
            None,
            type=["null", "string"],
            format="date",
            title="Snapshot",
            description="Date of the snapshot in the landing zone. "
            "Empty: the run's partition date, else the newest snapshot.",
        ),
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=1000,
            title="Reason",
            description="Why it is run, or run again; kept with the run and your name.",
        ),
    },
):

    @task(multiple_outputs=True, **policies.BOOKKEEPING)
    def choose_snapshot() -> dict[str, str]:
        """The snapshot of the form, else of the run's partition, else the newest one."""
        from plugins import inputs

        config, context = settings(), get_current_context()
        wanted, partition = context["params"]["snapshot"], context["dag_run"].partition_key
        try:
            snapshot, landing = inputs.choose_snapshot(config.data, wanted or partition)
        except inputs.NoSnapshot as nothing:
            if wanted or not partition:
                raise  # a person asked for it
            raise AirflowSkipException(str(nothing)) from None
        return {"snapshot": snapshot, "landing": landing, **inputs.places(snapshot, landing, config)}

    @task(**policies.CURATION)
    def inventory(snapshot: str, landing: str, output: str) -> list[str]:
        """List the snapshot's shards and freeze their groups in a manifest; the groups' names."""
        from tasks.curation import steps

        config = settings()
        listed = steps.inventory(landing, output, snapshot, curation=config.curation, max_groups=config.max_groups)
        get_current_context()["ti"].xcom_push("manifest", listed["manifest"])
        return listed["groups"]

    chosen: Any = choose_snapshot()
    output = chosen["output"]
    groups = inventory(chosen["snapshot"], chosen["landing"], output)
    signals = compute_signals.partial(output=output).expand(group=groups)
    clusters = cluster_duplicates(output, chosen["index"])
    verdicts = write_verdicts.partial(output=output).expand(group=groups)
    published: Any = publish(output)
    held = gate(output, published)
    signals >> clusters >> verdicts >> published >> held
    held >> announce(chosen["snapshot"], output, published)
