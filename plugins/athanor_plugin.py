"""The plugin: what Airflow loads from this folder. The only file it scans (.airflowignore)."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from airflow.plugins_manager import AirflowPlugin

from plugins import listener
from plugins.deadlines import RunCreated
from plugins.limits import BoundedBodies
from plugins.operators import GateReportLink, PageLink, StageReportLink

Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[..., Any]


async def reports(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """The application of plugins/reports.py, imported by the API server alone: it costs seconds."""
    from plugins.reports import app

    await app(scope, receive, send)


async def page(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """The application of plugins/page/app.py, likewise."""
    from plugins.page.app import app

    await app(scope, receive, send)


class AthanorPlugin(AirflowPlugin):
    """The Athanor page, links to it and to gate reports, and the applications that serve both.

    `href` is relative, so that it holds below another root too; Airflow fills in what stands in braces.
    """

    name = "athanor"
    operator_extra_links = [GateReportLink(), StageReportLink(), PageLink()]  # noqa: RUF012 - Airflow's convention
    fastapi_apps = [  # noqa: RUF012
        {"name": "athanor reports", "app": reports, "url_prefix": "/athanor/reports"},
        {"name": "athanor page", "app": page, "url_prefix": "/athanor/page"},
    ]
    fastapi_root_middlewares = [  # noqa: RUF012
        {"name": "athanor bounded bodies", "middleware": BoundedBodies, "args": [], "kwargs": {}},
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Athanor",
            "href": "athanor/page/",
            "destination": "nav",
            "url_route": "athanor",
            "icon": "athanor/page/static/icon.svg",
        },
        {
            "name": "Athanor",
            "href": "athanor/page/#/runs/{DAG_ID}/{RUN_ID}",
            "destination": "dag_run",
            "url_route": "athanor-run",
        },
        {
            "name": "Athanor",
            "href": "athanor/page/#/task/{DAG_ID}/{RUN_ID}/{TASK_ID}/{MAP_INDEX}",
            "destination": "task_instance",
            "url_route": "athanor-task",
        },
    ]
    deadline_references = [RunCreated]  # noqa: RUF012
    listeners = [listener]  # noqa: RUF012 - credentials of the store for tasks
