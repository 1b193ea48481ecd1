"""Reports of gates and of trained stages over HTTP: by id, never by path, behind the UI's login."""

import re

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Response

from plugins.credentials import use_connection
from tasks.corpus.storage import join, open_store
from tasks.settings import settings

NAME = re.compile(r"[a-z0-9_-]{1,64}")
KEY = re.compile(r"[0-9a-f]{16}")
HASH = re.compile(r"[0-9a-f]{64}")
# The report is one file without scripts; nothing in it may load or run anything.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

app = FastAPI(title="Athanor reports", docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/evaluations/{model}", dependencies=[Depends(requires_authenticated())])
def stage_report(model: str) -> Response:
    """The HTML report of one trained stage, by the hash of what was trained."""
    use_connection()
    store = open_store(join(settings().store, "evaluations"))
    name = f"{model}/report.html"
    if not (HASH.fullmatch(model) and store.exists(name)):
        raise HTTPException(404, "no such report")
    return Response(store.read(name), media_type="text/html; charset=utf-8", headers=HEADERS)


@app.get("/{contract}/{key}", dependencies=[Depends(requires_authenticated())])
def report(contract: str, key: str) -> Response:
    """The HTML report of one gate. 404 for anything that is not the id of a report."""
    return _of_gate(contract, key, "report.html")


@app.get("/{contract}/{key}/data-docs", dependencies=[Depends(requires_authenticated())])
def data_docs(contract: str, key: str) -> Response:
    """Great Expectations' own pages of that gate."""
    return _of_gate(contract, key, "data_docs.html")


def _of_gate(contract: str, key: str, file: str) -> Response:
    use_connection()
    store = open_store(join(settings().store, "gates"))
    name = f"{contract}/{key}/{file}"
    if not (NAME.fullmatch(contract) and KEY.fullmatch(key) and store.exists(name)):
        raise HTTPException(404, "no such report")
    return Response(store.read(name), media_type="text/html; charset=utf-8", headers=HEADERS)
