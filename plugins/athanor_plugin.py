"""The plugin: what Airflow loads from this folder. The only file it scans (.airflowignore)."""

from collections.abc import Awaitable, Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from plugins import listener
from plugins.operators import GateReportLink


async def reports(scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[..., Any]) -> None:
    """The application of plugins/reports.py, imported by the API server alone: it costs seconds."""
    from plugins.reports import app

    await app(scope, receive, send)


class AthanorPlugin(AirflowPlugin):
    """Links to gate reports and the application that serves them."""

    name = "athanor"
    operator_extra_links = [GateReportLink()]  # noqa: RUF012 - Airflow's convention
    fastapi_apps = [{"name": "athanor reports", "app": reports, "url_prefix": "/athanor/reports"}]  # noqa: RUF012
    listeners = [listener]  # noqa: RUF012 - credentials of the store for tasks
