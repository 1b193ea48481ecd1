"""What `retrain_domain` and `watch_domains` work on, from forms, partitions and the store; and their two operators."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from plugins.notifier import AthanorNotifier
from tasks.corpus.artifact import content_hash
from tasks.errors import DataError
from tasks.settings import Settings, settings

if TYPE_CHECKING:
    from airflow.sdk import Context

MOST_REBASES = 3


class NothingToDo(DataError):
    """No retraining is called for; the text says why."""


def choose_domain(params: Mapping[str, Any], partition: str | None, config: Settings) -> dict[str, Any]:
    """The domain of the form or of the run's partition, what was delivered for it, and the model to begin with.

    Raises ConfigError for a domain that nobody configured, DataError when nothing was delivered or no model is
    released, NothingToDo when the same delivery was trained before.
    """
    from tasks.cascade import domains
    from tasks.cascade.retraining import released_model
    from tasks.corpus.storage import join

    name = params.get("domain") or partition or ""
    domain = domains.load_domain(config.domains, name)
    delivery = domains.look(name, config.data)
    before = domains.trained(config.store, delivery)
    if before and not params.get("again"):
        when = f"on {before['at']}: {before['artifact']}"
        raise NothingToDo(f"domain {name}: what lies in {delivery.landing} was trained before, {when}")
    line = domains.line_of(domain, config)
    return {
        "domain": name,
        "delivery": delivery.model_dump(),
        "hash": delivery.hash,
        "line": line,
        "parent": released_model(config.store, line),
        "index": join(config.store, "index"),
    }


def curate(chosen: Mapping[str, Any], config: Settings) -> dict[str, Any]:
    """The delivery's records that are fit to train on."""
    from tasks.cascade.domains import Delivery, load_domain
    from tasks.cascade.retraining import curate_records

    return curate_records(
        Delivery.model_validate(chosen["delivery"]),
        load_domain(config.domains, chosen["domain"]),
        store=config.store,
        curation=config.curation,
        index=chosen["index"],
        workers=config.workers,
        scheduler=config.dask_scheduler,
    )


def plan(chosen: Mapping[str, Any], curated: Mapping[str, Any], again: bool, config: Settings) -> dict[str, Any]:
    """The training's spec, and the contract of its gate.

    Raises NothingToDo when there is too little that is new, unless it is to be trained `again`.
    """
    from tasks.cascade.domains import Delivery, load_domain
    from tasks.cascade.retraining import count_new, plan_retraining

    delivery, domain = Delivery.model_validate(chosen["delivery"]), load_domain(config.domains, chosen["domain"])
    tokens = count_new(delivery, curated["corpus"], store=config.store, model=chosen["parent"]["uri"])
    if tokens < domain.minimum_tokens and not again:
        raise NothingToDo(
            f"domain {domain.name}: {tokens:,} new tokens, of {domain.minimum_tokens:,} that a retraining is worth; "
            "they are trained on when enough has landed"
        )
    options = {"line": chosen["line"], "records": curated["records"], "store": config.store, "home": str(config.home)}
    spec = plan_retraining(delivery, domain, parent=chosen["parent"], **options)
    return {"spec": spec.model_dump(mode="json"), "contract": domain.stage.kind, "new_tokens": tokens}


def release(
    chosen: Mapping[str, Any], trained: Mapping[str, Any], by: str, why: str, run: str, config: Settings
) -> dict[str, Any]:
    """Release what was trained, unless another model has been released since: then `moved` says so."""
    from tasks.cascade.domains import Delivery
    from tasks.cascade.retraining import release

    outcome = release(
        Delivery.model_validate(chosen["delivery"]),
        line=chosen["line"],
        store=config.store,
        artifact=trained["artifact"],
        parent=chosen["parent"]["hash"],
        by=by,
        why=why,
        run=run,
    )
    return {"line": chosen["line"], "artifact": trained["artifact"], **outcome}


def roll_back(params: Mapping[str, Any], by: str, config: Settings) -> dict[str, Any]:
    """Release again what was released before in the domain's line."""
    from tasks.cascade import domains
    from tasks.cascade.retraining import released_model
    from tasks.corpus.registry import roll_back

    line = domains.line_of(domains.load_domain(config.domains, params["domain"] or ""), config)
    now = released_model(config.store, line)["hash"]
    why = params["reason"] or "rolled back by retrain_domain"
    back = roll_back(config.store, line, expected_released=now, by=by, why=why)["released"]
    return {"line": line, "from": now, **back}


def find_new(config: Settings) -> dict[str, str]:
    """Domains with a delivery to announce, each with its hash."""
    from tasks.cascade.domains import unannounced

    return {delivery.domain: delivery.hash for delivery in unannounced(config)}


def record_announced(found: Mapping[str, str], config: Settings) -> None:
    """Put down that these deliveries were announced."""
    from tasks.cascade.domains import record_announced

    for domain, delivery in found.items():
        record_announced(config.store, domain, delivery)


class ApproveOperator(ApprovalOperator):
    """Asks a person, in the UI, whether a retrained model is to be released: never, when a gate warned, or always, as
    the domain says. Rejected, what follows is skipped.

    :param chosen: result of `choose_domain`.
    :param trained: result of the training.
    :param gates: results of the gates.
    """

    template_fields: Sequence[str] = ("subject", "body", "chosen", "trained", "gates")

    def __init__(self, *, chosen: Any, trained: Any, gates: list[Any], **kwargs: Any) -> None:
        words = "Ask a person whether to release the model, where the domain's `approval` says so."
        asked = AthanorNotifier("approval wanted", "a retrained model waits for a person: release it or not")
        super().__init__(subject="Release the retrained model?", notifiers=[asked], **{"doc_md": words, **kwargs})
        self.chosen, self.trained, self.gates = chosen, trained, gates

    def execute(self, context: "Context") -> Any:
        from tasks.cascade.domains import load_domain

        config = settings()
        warned = [gate["contract"] for gate in self.gates if gate["verdict"] == "warning"]
        approval = load_domain(config.domains, self.chosen["domain"]).approval
        if approval == "never" or (approval == "warnings" and not warned):
            self.log.info("nobody is asked: the domain says %s, gates that warned: %s", approval, warned or "none")
            return {"asked": False}
        self.subject = f"Release the model retrained for {self.chosen['domain']} in line {self.chosen['line']}?"
        self.body = approval_words(config.store, self.trained["hash"], warned)
        return super().execute(context)


def approval_words(store: str, model: str, warned: list[str]) -> str:
    """What a person reads before deciding, as Markdown."""
    from tasks.cascade.retraining import figures

    found = figures(store, model)
    lines = [f"| {name.replace('_', ' ')} | {value:.4g} |" for name, value in found.items()]
    gates = f"Gates that warned: {', '.join(warned)}." if warned else "No gate warned."
    report = f"[Report](/athanor/reports/evaluations/{model})"
    return "\n".join(["| figure | nats a token |", "| --- | --- |", *lines, "", f"{gates} {report}"])


class StartAgainOperator(TriggerDagRunOperator):
    """Starts the retraining again from the model that has been released meanwhile, a few times at most.

    :param outcome: result of the release.
    :param chosen: result of `choose_domain`.
    """

    template_fields: Sequence[str] = (*TriggerDagRunOperator.template_fields, "outcome", "chosen")

    def __init__(self, *, outcome: Any, chosen: Any, **kwargs: Any) -> None:
        words = "Where another model was released meanwhile: train again from that one, and hold it against the gates."
        super().__init__(logical_date=None, skip_when_already_exists=True, **{"doc_md": words, **kwargs})
        self.outcome, self.chosen = outcome, chosen

    def execute(self, context: "Context") -> None:
        if not self.outcome["moved"]:
            raise AirflowSkipException("it was released; nothing to do again")
        rebases = context["params"]["rebases"]
        if rebases >= MOST_REBASES:
            raise AirflowFailException(
                f"{self.outcome['moved']}. It was rebased {rebases} times, and each time another model was released "
                "meanwhile: nothing was released for this domain; start retrain_domain again when the others are done"
            )
        self.log.info("%s", self.outcome["moved"])
        # One name for one rebase: a second try of this task finds the run that the first one started.
        upon = content_hash([context["dag_run"].run_id, self.chosen["parent"]["hash"]])
        self.trigger_run_id = f"rebase__{self.chosen['domain']}__{upon[:16]}"
        asked = context["params"]["reason"]
        reason = "; ".join(filter(None, (asked, f"rebase: {self.outcome['moved']}")))
        self.conf = {
            "domain": self.chosen["domain"],
            "reason": reason[:1000],
            "again": context["params"]["again"],
            "rebases": rebases + 1,
        }
        super().execute(context)
