"""# New records of a domain are noticed

Every ten minutes **look** lists the folders `<data>/domains/<name>` of the configured domains, and updates the asset
*domain_data*, with the domain as the partition, for each whose files have changed. That starts `retrain_domain`. Then
**remember** puts that down: files whose announcement failed are announced at the next look, and announced twice they
train once. What was announced and not trained (too few new tokens, a refused gate) is announced again a day later.
"""

from typing import Any

from airflow.sdk import DAG, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import policies
from dags.assets import DOMAIN_DATA
from tasks.settings import settings

with DAG(
    dag_id="watch_domains",
    description="Notice new records of the configured domains, and start their retraining",
    doc_md=__doc__,
    schedule="*/10 * * * *",
    catchup=False,
    max_active_runs=1,
    tags=["athanor", "domain"],
):

    @task(outlets=[DOMAIN_DATA], **policies.BOOKKEEPING)
    def look() -> Any:
        """Announce every domain whose files have changed."""
        from plugins.retraining import find_new

        found = find_new(settings())
        if not found:
            raise AirflowSkipException("nothing new has landed for any domain")
        get_current_context()["outlet_events"][DOMAIN_DATA].add_partitions(list(found))
        return found

    @task(**policies.BOOKKEEPING)
    def remember(found: dict[str, str]) -> None:
        """Put down what was announced, now that it was."""
        from plugins.retraining import record_announced

        record_announced(found, settings())

    remember(look())
