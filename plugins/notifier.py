"""One notifier for failures, gate warnings, approvals and deadlines: log, and webhook and mail where configured.

`ATHANOR_NOTIFY_WEBHOOK` is an address that takes JSON by POST, `ATHANOR_NOTIFY_MAIL` addresses by commas; the mail
server is the Airflow connection `athanor_smtp` (host, port, login, password; extra: `from`, `starttls`). A channel that
does not work is said so in the log, and harms no task.
"""

import asyncio
import json
import logging
import smtplib
import ssl
import urllib.request
from collections.abc import Mapping
from email.message import EmailMessage
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseNotifier
from airflow.sdk.configuration import conf

from tasks.settings import Settings, settings

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)
SMTP = "athanor_smtp"
TIMEOUT = 10.0  # seconds for a channel
LONGEST = 2000  # characters of the reason


class AthanorNotifier(BaseNotifier):
    """Tells what happened to a task or run: `what` in a word or two, `words` the reason, else the task's exception."""

    def __init__(self, what: str, words: str = "") -> None:
        super().__init__()
        self.what, self.words = what, words

    def notify(self, context: "Context") -> None:
        tell(message(self.what, context, self.words), settings())

    async def async_notify(self, context: "Context") -> None:
        await asyncio.to_thread(self.notify, context)


async def deadline_missed(context: Mapping[str, Any], hours: float) -> None:
    """Callback of a DAG's deadline; runs in the triggerer, whose context is a run and no task.

    Airflow forgets the deadlines of runs that succeeded, and calls this for those that failed long before.
    """
    if _of(context["dag_run"], "end_date"):
        return
    words = f"has not ended {hours:g} hours after it was queued; look at it, it goes on"
    await asyncio.to_thread(lambda: tell(message("deadline missed", context, words), settings()))


def message(what: str, context: Mapping[str, Any], words: str = "") -> dict[str, Any]:
    """What is sent, as JSON: what happened, where, why, and a link to it."""
    instance, run = context.get("ti"), context.get("dag_run")
    dag_id, run_id = (_of(instance or run, name) for name in ("dag_id", "run_id"))
    found = {"what": what, "dag_id": dag_id, "run_id": run_id or _of(run, "dag_run_id")}
    link = f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/dags/{quote(dag_id)}/runs/{quote(found['run_id'])}"
    if instance is not None:
        index = _of(instance, "map_index")
        found |= {"task_id": _of(instance, "task_id"), "map_index": index, "try": _of(instance, "try_number")}
        link += f"/tasks/{quote(found['task_id'])}" + (f"/mapped/{index}" if _mapped(index) else "")
    return {**found, "words": (words or str(context.get("exception") or ""))[:LONGEST], "link": link}


def _mapped(index: Any) -> bool:
    return isinstance(index, int) and index >= 0


def _of(thing: Any, name: str) -> Any:
    found = thing.get(name, "") if isinstance(thing, Mapping) else getattr(thing, name, "")
    return "" if found is None else found


def tell(said: Mapping[str, Any], config: Settings) -> list[str]:
    """Send a message to every configured channel; returns the names of those that took it."""
    log.warning("%s: %s", in_words(said), said["words"])
    told = ["log"]
    for name, send, where in (("webhook", _post, config.notify_webhook), ("mail", _mail, config.notify_mail)):
        if not where:
            continue
        try:
            send(said, where)
            told.append(name)
        except Exception as error:  # noqa: BLE001 - whatever a channel does, the task's own error is what counts
            why = str(error).replace(where.strip(), "…")  # a webhook's address is a secret as a rule
            log.warning("the notification by %s was not taken: %s: %s", name, type(error).__name__, why)
    return told


def in_words(said: Mapping[str, Any]) -> str:
    """`failed: curate_corpus, compute_signals[3]`."""
    words = f"{said['what']}: {said['dag_id']}"
    if "task_id" in said:
        words += f", {said['task_id']}" + (f"[{said['map_index']}]" if _mapped(said["map_index"]) else "")
    return words


def _post(said: Mapping[str, Any], where: str) -> None:
    body = json.dumps({"text": f"{in_words(said)}: {said['words']} {said['link']}", **said}).encode()
    request = urllib.request.Request(where, body, {"Content-Type": "application/json"})  # noqa: S310 - configured
    with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310
        return


def _mail(said: Mapping[str, Any], where: str) -> None:
    from airflow.sdk import Connection

    server = Connection.get(SMTP)
    mail = EmailMessage()
    mail["Subject"] = f"Athanor: {in_words(said)}"
    mail["From"] = server.extra_dejson.get("from") or server.login or "athanor@localhost"
    mail["To"] = where
    mail.set_content(f"{said['words']}\n\n{said['link']}\n")
    with smtplib.SMTP(server.host or "localhost", server.port or 25, timeout=TIMEOUT) as client:
        if server.extra_dejson.get("starttls"):
            client.starttls(context=ssl.create_default_context())
        if server.login and server.password:
            client.login(server.login, server.password)
        client.send_message(mail)
