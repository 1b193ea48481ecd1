"""Domains that a released model is retrained for, and what was delivered for each.

A domain is a file of `data_contracts/domains`; its records lie in `<data>/domains/<name>`. A **delivery** is what lies
there at one moment, known by its content: the same delivery is trained once, however often it is announced.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.corpus.artifact import content_hash
from tasks.corpus.manifest import checksum
from tasks.corpus.storage import exists, join, open_store, read_json, write_json
from tasks.errors import ConfigError, DataError
from tasks.settings import Settings, StrictModel, load_yaml
from tasks.training.plan import is_shard
from tasks.training.recipe import AdaptStage, SftStage, load_recipe

SCHEMA_VERSION: Literal[1] = 1
FOLDER = "domains"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
REMIND = timedelta(days=1)  # an announced delivery that was not trained is announced again


class Domain(StrictModel):
    """One file of `data_contracts/domains`."""

    schema_version: Literal[1]
    name: str = Field(pattern=f"^{NAME.pattern}$")
    title: str
    line: str = Field("", description="model line that is retrained; empty: the configured recipe's")
    minimum_tokens: int = Field(ge=1, description="new tokens that a retraining is worth")
    approval: Literal["never", "warnings", "always"] = Field(
        "warnings", description="when a person is asked before the model is released"
    )
    curation: str = Field("records", description="rules for the records: a file of data_contracts/curation, or a path")
    stage: Annotated[AdaptStage | SftStage, Field(discriminator="kind", description="how it is trained")]


class Delivery(StrictModel):
    """What lies in a domain's folder: file → checksum. `hash` stands for the domain and all of it."""

    domain: str
    landing: str
    files: dict[str, str]
    hash: str


def load_domains(folder: str) -> dict[str, Domain]:
    """Every configured domain by name. Raises ConfigError for a file that cannot be used."""
    found = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        domain = load_yaml(Domain, path)
        if domain.name != path.stem:
            raise ConfigError(f"{path}: its name is '{domain.name}'; a domain's file is named like it")
        found[domain.name] = domain
    return found


def load_domain(folder: str, name: str) -> Domain:
    """The domain of that name. Raises ConfigError that lists the names there are."""
    domains = load_domains(folder)
    if name not in domains:
        there = f"there are: {', '.join(domains)}" if domains else "there is none"
        what = f"domain {name[:60]!r} is not configured; {there}."
        raise ConfigError(f"{what} To add one, write its file into {folder} (data_contracts/README.md says how)")
    return domains[name]


def line_of(domain: Domain, config: Settings) -> str:
    """Name of the model line that the domain retrains."""
    return domain.line or load_recipe(config.recipe).name


def look(domain: str, data: str) -> Delivery:
    """What lies in a domain's folder of the landing zone now. Raises DataError when nothing does."""
    landing = join(data, FOLDER, domain)
    store = open_store(landing)
    files = {entry.key: checksum(store, entry.key) for entry in store.list() if is_shard(entry.key)}
    if not files:
        raise DataError(f"{landing}: no records; expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet with `messages`")
    return Delivery(domain=domain, landing=store.uri, files=files, hash=content_hash([domain, files]))


# -- what was done with deliveries ---------------------------------------------------------------------------------


def trained(store: str, delivery: Delivery) -> dict[str, Any] | None:
    """The record of a delivery whose model was released; None when there is none."""
    where = join(store, FOLDER, delivery.domain, "trained", f"{delivery.hash}.json")
    return read_json(where) if exists(where) else None


def record_trained(store: str, delivery: Delivery, **facts: Any) -> None:
    """Put down that a delivery's model was released, once."""
    where = join(store, FOLDER, delivery.domain, "trained", f"{delivery.hash}.json")
    record = {"schema_version": SCHEMA_VERSION, **delivery.model_dump(), "at": _now(), **facts}
    write_json(where, record, if_absent=True)


def known_files(store: str, domain: str) -> set[str]:
    """Checksums of all files that released models of the domain were trained on."""
    folder = join(store, FOLDER, domain, "trained")
    records = [read_json(join(folder, entry.key)) for entry in open_store(folder).list()]
    return {checksum for record in records for checksum in record["files"].values()}


def unannounced(config: Settings) -> list[Delivery]:
    """Deliveries of configured domains that were neither trained nor announced within the last day."""
    found = []
    for name in load_domains(config.domains):
        try:
            delivery = look(name, config.data)
        except DataError:
            continue  # nothing has landed for it
        where = _announcement(config.store, name)
        last = read_json(where) if exists(where) else {"hash": "", "at": _now()}
        old = datetime.fromisoformat(last["at"]) < datetime.now(UTC) - REMIND
        if trained(config.store, delivery) is None and (last["hash"] != delivery.hash or old):
            found.append(delivery)
    return found


def record_announced(store: str, domain: str, delivery: str) -> None:
    """Put down that the delivery with the hash `delivery` was announced: afterwards, so that none is missed."""
    write_json(_announcement(store, domain), {"schema_version": SCHEMA_VERSION, "hash": delivery, "at": _now()})


def _announcement(store: str, domain: str) -> str:
    return join(store, FOLDER, domain, "announced.json")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
