"""The Athanor page: thin routes over what the store, the job folders and Airflow's database say.

Every route stands behind Airflow's login and roles (`access.py`). Names in paths are matched against what they may look
like, and are never taken for paths. Whatever may quote a document is masked before it comes here.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import orjson
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.assets.manager import asset_manager
from airflow.models.log import Log
from airflow.serialization.definitions.assets import SerializedAssetUniqueKey
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field, StringConstraints

from plugins.credentials import use_connection
from plugins.page import runs as airflow_runs
from plugins.page.access import CORPUS_DAG, MODEL_DAG, editor, reader
from tasks.corpus import registry
from tasks.corpus.lineage import walk
from tasks.corpus.storage import join
from tasks.curation.board import SORTS, STATES, Board, Cell, read_snapshots
from tasks.curation.repair import read_repairs
from tasks.curation.shard_detail import read_rows, read_text, shown_failure, shown_verdict
from tasks.curation.why import search_verdicts
from tasks.errors import DataError, StorageError
from tasks.gates.history import read_gates
from tasks.settings import settings
from tasks.training.curves import curves, describe, find_job, read_jobs

STATIC = Path(__file__).with_name("static")
RUNBOOK = Path(__file__).parents[1] / "RUNBOOK.md"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Everything comes from here; nothing inline, nothing from elsewhere, framed by Airflow's own UI alone.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
PAGE_OF_ROWS = 100
RELEASED_MODEL = "released_model"  # the asset of dags/assets.py

Date = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")]
ShardId = Annotated[str, StringConstraints(pattern=r"^x?[0-9a-f]{16}(-\d{1,9})?$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
Words = Annotated[str, StringConstraints(min_length=3, max_length=1000, strip_whitespace=True)]

app = FastAPI(title="Athanor", docs_url=None, redoc_url=None, openapi_url=None)


class Decision(BaseModel):
    """What a person decides about a model line; `released` is the hash that was released when the page was drawn."""

    released: str = Field(max_length=64)
    why: Words


@app.exception_handler(DataError)
@app.exception_handler(StorageError)
def explained(request: Request, error: Exception) -> Response:
    """What is not there is 404, a store that does not answer 503; both in words."""
    return answer({"detail": str(error)}, 404 if isinstance(error, DataError) else 503)


def store() -> str:
    """URI of the store, with the credentials at hand that it wants."""
    use_connection()
    return settings().store


def answer(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, HEADERS, "application/json")


def unless_known(request: Request, version: str, value: Any) -> Response:
    """The value, or 304 when the page has this version already."""
    etag = f'W/"{version}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={**HEADERS, "ETag": etag})
    found = answer(value)
    found.headers["ETag"] = etag
    return found


def by_content(request: Request, value: Any) -> Response:
    return unless_known(request, hashlib.sha256(orjson.dumps(value)).hexdigest()[:16], value)


# -- the page itself -----------------------------------------------------------------------------------------------


@app.get("/", dependencies=[reader(CORPUS_DAG)])
def page() -> Response:
    return asset("index.html")


@app.get("/static/{name}", dependencies=[reader(CORPUS_DAG)])
def asset(name: Name) -> Response:
    path = STATIC / name
    if path.suffix not in TYPES or not path.is_file():
        raise HTTPException(404, "no such file")
    return Response(path.read_bytes(), headers=HEADERS, media_type=TYPES[path.suffix])


@app.get("/runbook", dependencies=[reader(CORPUS_DAG)])
def runbook() -> Response:
    """What goes wrong and what to do, as plain text."""
    return Response(RUNBOOK.read_bytes(), headers=HEADERS, media_type="text/plain; charset=utf-8")


# -- runs ----------------------------------------------------------------------------------------------------------


@app.get("/api/runs", dependencies=[reader(CORPUS_DAG)])
def runs(request: Request, session: SessionDep, user: GetUserDep) -> Response:
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return by_content(request, {"runs": airflow_runs.read_runs(session, readable, limit=25)})


@app.get("/api/runs/{dag_id}/{run_id:path}", dependencies=[reader(CORPUS_DAG)])
def run(request: Request, dag_id: Name, run_id: str, session: SessionDep, user: GetUserDep) -> Response:
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    found = airflow_runs.find_run(session, dag_id, run_id) if dag_id in readable else None
    if found is None or not airflow_runs.ours(dag_id):
        raise HTTPException(404, "no such run of one of Athanor's DAGs")
    return by_content(request, found)


# -- shards --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _board(output: str) -> tuple[Board, Lock]:
    return Board(output), Lock()


def board(snapshot: Date) -> Board:
    """The board of a snapshot, brought up to date."""
    found, lock = _board(join(store(), "corpus", snapshot))
    with lock:
        return found.look()


SnapshotBoard = Annotated[Board, Depends(board)]


@app.get("/api/snapshots", dependencies=[reader(CORPUS_DAG)])
def snapshots(request: Request) -> Response:
    return by_content(request, {"snapshots": read_snapshots(store())})


@app.get("/api/shards/{snapshot}", dependencies=[reader(CORPUS_DAG)])
def shards(
    request: Request,
    found: SnapshotBoard,
    state: Annotated[str, Query(pattern=f"^({'|'.join(STATES)})?$")] = "",
    text: Annotated[str, Query(max_length=200)] = "",
    sort: Annotated[str, Query(pattern=f"^({'|'.join(SORTS)})$")] = "path",
    descending: bool = False,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Totals, one letter a shard in the order asked for (`cells`), and a page of them in words (`rows`)."""
    version = f"{found.version}-{hashlib.sha256(str(request.query_params).encode()).hexdigest()[:8]}"
    cells = found.select(state, text, sort, descending)
    value = {
        **found.summary,
        "failures": [shown_failure(failure) for failure in found.failures[:20]],
        "failures_total": len(found.failures),
        "total": len(cells),
        "cells": "".join(cell.state[0] for cell in cells),
        "offset": offset,
        "rows": [_row(cell) for cell in cells[offset : offset + PAGE_OF_ROWS]],
    }
    return unless_known(request, version, value)


def _row(cell: Cell) -> dict[str, Any]:
    shard = cell.shard
    return {
        **{name: getattr(shard, name) for name in ("id", "key", "group", "size")},
        "state": cell.state,
        "kept_share": cell.kept_share,
        **cell.counts,
    }


@app.get("/api/shards/{snapshot}/{shard}", dependencies=[reader(CORPUS_DAG)])
def shard(request: Request, snapshot: Date, shard: ShardId, found: SnapshotBoard, session: SessionDep) -> Response:
    """What failed, what its rows need, and where the grid shows its group."""
    cell = found.cell(shard)
    failures = [shown_failure(item) for item in found.failures if item.id == shard]
    return by_content(
        request,
        {
            **_row(cell),
            "failures": failures,
            "task": airflow_runs.latest_group_task(session, snapshot, cell.shard.group),
            "quarantined_rows": read_rows(found.output, cell.shard, verdict="quarantined"),
        },
    )


@app.get("/api/shards/{snapshot}/{shard}/rows", dependencies=[reader(CORPUS_DAG)])
def rows(
    request: Request,
    shard: ShardId,
    found: SnapshotBoard,
    verdict: Annotated[str, Query(pattern="^(kept|dropped|quarantined)?$")] = "",
    offset: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    return by_content(request, read_rows(found.output, found.cell(shard).shard, verdict=verdict, offset=offset))


@app.get("/api/shards/{snapshot}/{shard}/rows/{row}", dependencies=[reader(CORPUS_DAG)])
def text(shard: ShardId, row: int, found: SnapshotBoard) -> Response:
    """The head of one row's text, masked."""
    return answer(read_text(found.manifest, found.cell(shard).shard, row))


@app.get("/api/repairs/{snapshot}", dependencies=[reader(CORPUS_DAG)])
def repairs(request: Request, snapshot: Date) -> Response:
    return by_content(request, {"repairs": read_repairs(join(store(), "corpus", snapshot))})


@app.get("/api/why/{snapshot}", dependencies=[reader(CORPUS_DAG)])
def why(
    snapshot: Date, document: Annotated[str, Query(min_length=4, max_length=300)], after: int = 0
) -> Response:
    """A document's verdicts. Looks for a few seconds; `next` is where to go on, None at the end."""
    found = search_verdicts(join(store(), "corpus", snapshot), document.strip(), after=max(0, after))
    shown = [{**shown_verdict(row), "shard": row["shard"], "similarity": row["similarity"]} for row in found.rows]
    return answer({"verdicts": shown, "looked_at": found.looked_at, "files": found.files, "next": found.next})


# -- training, gates, lineage --------------------------------------------------------------------------------------


@app.get("/api/training", dependencies=[reader(MODEL_DAG)])
def training(request: Request) -> Response:
    use_connection()
    return by_content(request, {"jobs": [describe(job) for job in read_jobs(settings().home)[:50]]})


@app.get("/api/training/{key}", dependencies=[reader(MODEL_DAG)])
def training_curves(request: Request, key: Key) -> Response:
    return by_content(request, {"curves": curves(find_job(settings().home, key))})


@app.get("/api/gates", dependencies=[reader(CORPUS_DAG)])
def gates(request: Request) -> Response:
    return by_content(request, {"gates": read_gates(join(store(), "gates"))})


@app.get("/api/lineage/{line}/{pointer}", dependencies=[reader(MODEL_DAG)])
def lineage(
    request: Request, line: Name, pointer: Annotated[str, StringConstraints(pattern="^(candidate|released)$")]
) -> Response:
    """From the model that a line points to, back to the shards."""
    points_to = registry.read_registry(store(), line)[pointer]
    if points_to is None:
        raise HTTPException(404, f"line {line} has no {pointer} model")
    return by_content(request, {"ancestors": [_ancestor(item) for item in walk(points_to["uri"])]})


def _ancestor(item: Any) -> dict[str, Any]:
    artifact = item.artifact
    shown: dict[str, Any] = {"depth": item.depth, "uri": item.uri, "problem": item.problem}
    if artifact is not None:
        shown |= {name: getattr(artifact, name) for name in ("kind", "stage", "hash", "created", "parents")}
        shown["metrics"] = {k: v for k, v in artifact.metrics.items() if isinstance(v, int | float)}
        shown["data"] = sorted(artifact.data.items())[:PAGE_OF_ROWS]
        shown["data_total"] = len(artifact.data)
    return shown


# -- releases ------------------------------------------------------------------------------------------------------


@app.get("/api/releases", dependencies=[reader(MODEL_DAG)])
def releases(request: Request, user: GetUserDep) -> Response:
    where = store()
    lines = {name: registry.read_registry(where, name) for name in registry.model_lines(where)}
    return by_content(request, {"lines": lines, "may_decide": _may_decide(user)})


def _may_decide(user: Any) -> bool:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

    return get_auth_manager().is_authorized_dag(method="PUT", details=DagDetails(id=MODEL_DAG), user=user)


@app.post("/api/releases/{line}/promote", dependencies=editor(MODEL_DAG))
def promote(line: Name, decision: Decision, session: SessionDep, user: GetUserDep) -> Response:
    """Release the line's candidate, if what is released is still what the person saw."""
    candidate = registry.read_registry(store(), line)["candidate"]
    if candidate is None:
        raise HTTPException(404, f"line {line} has no candidate")
    said = {"by": user.get_name(), "why": decision.why, "expected_released": decision.released}
    return _decided(session, user, line, "athanor promote", registry.promote, candidate["uri"], "released", **said)


@app.post("/api/releases/{line}/rollback", dependencies=editor(MODEL_DAG))
def roll_back(line: Name, decision: Decision, session: SessionDep, user: GetUserDep) -> Response:
    """Release again what was released before."""
    said = {"by": user.get_name(), "why": decision.why, "expected_released": decision.released}
    return _decided(session, user, line, "athanor roll back", registry.roll_back, **said)


def _decided(session: Any, user: Any, line: str, event: str, change: Any, *arguments: str, **said: str) -> Response:
    """Do it, put it into Airflow's audit log, and update the asset if another model is released now; 409 when the line
    has moved on."""
    try:
        changed = change(store(), line, *arguments, **said)
    except DataError as error:
        raise HTTPException(409, str(error)) from None
    extra = {"line": line, "why": said["why"], "released": changed["released"]["hash"]}
    session.add(Log(event, owner=user.get_name(), dag_id=MODEL_DAG, extra=orjson.dumps(extra).decode()))
    if extra["released"] != said["expected_released"]:
        asset = SerializedAssetUniqueKey(RELEASED_MODEL, RELEASED_MODEL)
        asset_manager.register_asset_change(
            asset=asset, partition_key=line, extra=extra, source_is_api=True, session=session
        )
    return answer(changed)


