"""The project's DAGs in a real Airflow database, in a process of its own: what runs leave there, as JSON.

    python tests/dags/in_airflow.py RESULT
"""

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def loaded() -> Any:
    """The DAGs, parsed and stored as the DAG processor does; returns the bag."""
    from airflow import settings
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.db import add_default_pool_if_not_exists, synchronize_log_template

    import_all_models()
    Base.metadata.create_all(settings.engine)
    with settings.Session() as session:  # type: ignore[misc]  # set when Airflow starts
        session.add(DagBundleModel(name="dags-folder"))
        synchronize_log_template(session=session)
        add_default_pool_if_not_exists(session=session)
        session.commit()
    bag = DagBag(str(ROOT / "dags"), bundle_path=ROOT / "dags", bundle_name="dags-folder")
    sync_bag_to_db(bag, "dags-folder", None)
    return bag


def deadline() -> dict[str, Any]:
    """A run that takes longer than it may, as scheduler and triggerer meet it."""
    from airflow import settings
    from airflow.models.deadline import Deadline
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.triggers.callback import CallbackTrigger
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType
    from sqlalchemy import select

    now = datetime.now(UTC)
    with settings.Session() as session:  # type: ignore[misc]
        dag = SerializedDagModel.get_dag("curate_corpus", session=session)
        assert dag is not None
        kind: dict[str, Any] = {"run_type": DagRunType.MANUAL, "triggered_by": DagRunTriggeredByType.REST_API}
        dag.create_dagrun(run_id="slow", run_after=now, state=DagRunState.QUEUED, session=session, **kind)
        session.flush()
        missed = list(session.scalars(select(Deadline).where(Deadline.deadline_time < datetime.now(UTC))))
        for item in missed:
            item.handle_miss(session)  # as the scheduler does
        session.flush()
        triggers = [item.callback.trigger for item in missed]
        arguments = [(trigger.classpath, trigger.kwargs) for trigger in triggers]

    async def events(given: dict[str, Any]) -> list[str]:
        return [event.payload["state"] async for event in CallbackTrigger(**given).run()]

    return {
        "callbacks": [given["callback_path"] for _, given in arguments],
        "triggers": [path for path, _ in arguments],
        "events": [asyncio.run(events(given)) for _, given in arguments],  # as the triggerer does
    }


def roll_back(bag: Any) -> dict[str, Any]:
    """`retrain_domain` told to roll back: the states of its tasks, and the events of assets."""
    from airflow import settings
    from airflow.models.asset import AssetEvent

    dag = bag.dags["retrain_domain"]
    dag.deadline = None  # which `dag.test` cannot read back
    run = dag.test(run_conf={"domain": "legal", "roll_back": True, "reason": "worse answers"})
    with settings.Session() as session:  # type: ignore[misc]
        states = {item.task_id: item.state for item in session.merge(run).get_task_instances(session=session)}
        events = [(event.name, event.partition_key, event.source_task_id) for event in session.query(AssetEvent)]
    return {"states": states, "events": events}


if __name__ == "__main__":
    bag = loaded()
    found = {"deadline": deadline(), "roll_back": roll_back(bag)}
    Path(sys.argv[1]).write_text(json.dumps(found))
