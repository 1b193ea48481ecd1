"""Who may see and do what on the page: Airflow's own roles on the project's DAGs."""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, HTTPException, Request

CORPUS_DAG, MODEL_DAG = "curate_corpus", "train_cascade"  # whose readers may read corpora, and models


def reader(dag_id: str) -> Any:
    """Dependency: 401 without a login, 403 for who may not read that DAG's runs."""
    return Depends(requires_access_dag("GET", DagAccessEntity.RUN, dag_id))


def editor(dag_id: str) -> list[Any]:
    """Dependencies: 403 for who may not edit that DAG, and for requests that another site caused."""
    return [Depends(requires_access_dag("PUT", None, dag_id)), Depends(same_site)]


def same_site(request: Request) -> None:
    """The login is a cookie, so a browser must say that the request comes from our own page."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "requests from other sites are refused")


