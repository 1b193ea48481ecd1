"""The tasks of curation that curate_corpus and repair_shards share, from signals to the announced corpus."""

from typing import Any

from airflow.sdk import Metadata, get_current_context, task

from dags import policies
from dags.assets import CURATED_CORPUS
from plugins.operators import GateOperator, progress_reporter
from tasks.settings import settings

# The grid names each mapped task by its group. Mapped tasks take no documentation from their docstring, hence doc_md.
GROUP = "{{ task.op_kwargs['group'] }}"


@task(
    map_index_template=GROUP,
    doc_md="Read every document of the group once and store its signals.",
    **policies.CURATION_GROUP,
)
def compute_signals(output: str, group: str) -> dict[str, Any]:
    """Read every document of the group once and store its signals."""
    from tasks.curation import steps

    config, instance = settings(), get_current_context()["ti"]
    return steps.compute_signals(
        output,
        group,
        workers=config.workers,
        scheduler=config.dask_scheduler,
        on_progress=progress_reporter(),
        budget=config.failed_budget,
        last_try=instance.try_number > instance.max_tries,
    )


@task(**policies.CURATION)
def cluster_duplicates(output: str, index: str) -> dict[str, Any]:
    """Find exact and near duplicates over the whole snapshot, and of survivors of earlier ones in the index."""
    from tasks.curation import steps

    config = settings()
    return steps.cluster_duplicates(
        output,
        index=index or None,
        workers=config.workers,
        scheduler=config.dask_scheduler,
        budget=config.failed_budget,
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


def gate(output: str, published: Any) -> GateOperator:
    """Hold the corpus against its contract."""
    return GateOperator(
        task_id="gate", contract="curated", subject={"corpus": output}, key=published["hash"], **policies.GATE
    )


@task(outlets=[CURATED_CORPUS], **policies.BOOKKEEPING)
def announce(snapshot: str, corpus: str, published: dict[str, Any]) -> Any:
    """Update the asset; the event's partition is the snapshot's date, however the run was started."""
    get_current_context()["outlet_events"][CURATED_CORPUS].add_partitions(snapshot)
    facts = {key: value for key, value in published.items() if isinstance(value, int | float | str)}
    yield Metadata(CURATED_CORPUS, extra={"snapshot": snapshot, "corpus": corpus, **facts})
