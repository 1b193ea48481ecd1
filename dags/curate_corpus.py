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

**When a group fails:** its log names the shard and the remedy. Repair the cause, clear the red square: finished shards
are not computed again.
"""

from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, Metadata, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import policies
from dags.assets import CURATED_CORPUS
from plugins.operators import GateOperator, progress_reporter
from tasks.settings import settings

# The grid names each mapped task by its group. Mapped tasks take no documentation from their docstring, hence doc_md.
GROUP = "{{ task.op_kwargs['group'] }}"

with DAG(
    dag_id="curate_corpus",
    description="Curate one snapshot of raw shards: signals, duplicates, verdicts, text, gate",
    doc_md=__doc__,
    schedule=CronPartitionTimetable("0 2 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d"),
    catchup=False,
    max_active_runs=1,  # duplicates are decided against earlier survivors: one curation at a time
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
    },
):

    @task(multiple_outputs=True, **policies.BOOKKEEPING)
    def choose_snapshot() -> dict[str, str]:
        """The snapshot of the form, else of the run's partition, else the newest one."""
        from plugins import inputs
        from tasks.corpus.storage import join

        config, context = settings(), get_current_context()
        wanted, partition = context["params"]["snapshot"], context["dag_run"].partition_key
        try:
            snapshot, landing = inputs.choose_snapshot(config.data, wanted or partition)
        except inputs.NoSnapshot as nothing:
            if wanted or not partition:
                raise  # a person asked for it
            raise AirflowSkipException(str(nothing)) from None
        return {
            "snapshot": snapshot,
            "landing": landing,
            "output": join(config.store, "corpus", snapshot),
            # A folder without dates is read as a whole each time: its documents are no duplicates of themselves.
            "index": join(config.store, "index") if landing.rstrip("/").endswith(f"/{snapshot}") else "",
        }

    @task(**policies.CURATION)
    def inventory(snapshot: str, landing: str, output: str) -> list[str]:
        """List the snapshot's shards and freeze their groups in a manifest; the groups' names."""
        from tasks.curation import steps

        config = settings()
        listed = steps.inventory(landing, output, snapshot, curation=config.curation, max_groups=config.max_groups)
        get_current_context()["ti"].xcom_push("manifest", listed["manifest"])
        return listed["groups"]

    @task(
        map_index_template=GROUP,
        doc_md="Read every document of the group once and store its signals.",
        **policies.CURATION_GROUP,
    )
    def compute_signals(output: str, group: str) -> dict[str, Any]:
        """Read every document of the group once and store its signals."""
        from tasks.curation import steps

        config = settings()
        return steps.compute_signals(
            output,
            group,
            workers=config.workers,
            scheduler=config.dask_scheduler,
            on_progress=progress_reporter(),
        )

    @task(**policies.CURATION)
    def cluster_duplicates(output: str, index: str) -> dict[str, Any]:
        """Find exact and near duplicates over the whole snapshot, and of survivors of earlier ones in the index."""
        from tasks.curation import steps

        config = settings()
        return steps.cluster_duplicates(
            output, index=index or None, workers=config.workers, scheduler=config.dask_scheduler
        )

    @task(
        map_index_template=GROUP,
        doc_md="Decide on every document of the group and write the curated text.",
        **policies.CURATION_GROUP,
    )
    def write_verdicts(output: str, group: str) -> dict[str, Any]:
        """Decide on every document of the group and write the curated text."""
        from tasks.curation import steps

        config = settings()
        return steps.write_verdicts(
            output,
            group,
            workers=config.workers,
            scheduler=config.dask_scheduler,
            on_progress=progress_reporter(),
        )

    @task(multiple_outputs=True, **policies.CURATION)
    def publish(output: str) -> dict[str, Any]:
        """Check conservation over all shards, write the report, seal the corpus."""
        from tasks.curation import steps

        return steps.publish(output)

    @task(outlets=[CURATED_CORPUS], **policies.BOOKKEEPING)
    def announce(snapshot: str, corpus: str, published: dict[str, Any]) -> Any:
        """Update the asset; the event's partition is the snapshot's date, however the run was started."""
        get_current_context()["outlet_events"][CURATED_CORPUS].add_partitions(snapshot)
        facts = {key: value for key, value in published.items() if isinstance(value, int | float | str)}
        yield Metadata(CURATED_CORPUS, extra={"snapshot": snapshot, "corpus": corpus, **facts})

    chosen: Any = choose_snapshot()
    output = chosen["output"]
    groups = inventory(chosen["snapshot"], chosen["landing"], output)
    signals = compute_signals.partial(output=output).expand(group=groups)
    clusters = cluster_duplicates(output, chosen["index"])
    verdicts = write_verdicts.partial(output=output).expand(group=groups)
    published: Any = publish(output)
    gate = GateOperator(
        task_id="gate",
        contract="curated",
        subject={"corpus": output},
        key=published["hash"],
        **policies.GATE,
    )
    signals >> clusters >> verdicts >> published >> gate
    gate >> announce(chosen["snapshot"], output, published)
