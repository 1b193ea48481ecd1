"""Retraining a released model for a domain: curate the records, plan the training, release it if nothing moved.

    look → curate_records → count_new → plan_retraining → (train, evaluate, gate) → release

Each step is a plain function on URIs and is idempotent by content. The parent is what was released when the training
was planned; when another model has been released since, `release` says so, and it is trained again from that one.
"""

import tempfile
from pathlib import Path
from typing import Any

import orjson
import yaml

from tasks.cascade.domains import Delivery, Domain, known_files, record_trained
from tasks.corpus.artifact import read_artifact
from tasks.corpus.lineage import walk
from tasks.corpus.manifest import checksum
from tasks.corpus.parquet import read_table
from tasks.corpus.registry import ReleaseMoved, promote, read_registry, released_by
from tasks.corpus.shards import BadRow, Row, read_shard, stem, write_shard
from tasks.corpus.storage import join, open_store, read_json
from tasks.curation import steps
from tasks.curation.cluster import dask_client
from tasks.curation.config import load_curation
from tasks.errors import DataError
from tasks.training.conversations import Unusable, read_conversation
from tasks.training.plan import Input, StageSpec, identify, spec_of

SNAPSHOT = "9999-12-31"  # records are held against every day of the corpus' index, and enter none
RECORDS = "records.jsonl.zst"


def place_of(store: str, delivery: Delivery) -> str:
    """Folder of all that is made of a delivery."""
    return join(store, "domains", delivery.domain, delivery.hash[:32])


def released_model(store: str, line: str) -> dict[str, str]:
    """{"uri", "hash"} of the line's released model. Raises DataError when there is none."""
    released = read_registry(store, line)["released"]
    if released is None:
        raise DataError(f"line {line}: no model is released yet; train it, and promote its candidate (page Releases)")
    return {"uri": released["uri"], "hash": released["hash"]}


# -- the records ---------------------------------------------------------------------------------------------------


def curate_records(
    delivery: Delivery,
    domain: Domain,
    *,
    store: str,
    curation: str,
    index: str | None,
    workers: int = 2,
    scheduler: str | None = None,
) -> dict[str, Any]:
    """Hold a delivery's records against the rules, each other and the corpus' index; write those that are kept.

    A record's text is all that is said in it. Returns {"records" (folder), "corpus" (with verdicts and report), "read",
    "kept", "dropped", "quarantined"}. Raises DataError when nothing is kept, or a file changed since it was looked at.
    """
    place = place_of(store, delivery)
    documents, corpus = join(place, "documents", SNAPSHOT), join(place, "corpus")
    with tempfile.TemporaryDirectory(prefix="athanor-") as scratch:
        rules = _rules(Path(scratch) / "records.yaml", domain.curation, curation)
        for key in delivery.files:
            _write_documents(delivery, key, documents, Path(scratch))
        groups = steps.inventory(documents, corpus, SNAPSHOT, curation=str(rules))["groups"]
    with dask_client(workers, scheduler):
        for group in groups:
            steps.compute_signals(corpus, group)
        steps.cluster_duplicates(corpus, index=index, enter=False)
        for group in groups:
            steps.write_verdicts(corpus, group)
    report = steps.publish(corpus)
    if not report["kept"]:
        raise DataError(f"{delivery.landing}: none of {report['read']} records was kept; {corpus}/report.json says why")
    counts = {name: report[name] for name in ("read", "kept", "dropped", "quarantined")}
    return {"records": _write_records(corpus, join(place, "records")), "corpus": corpus, **counts}


def _rules(path: Path, records: str, curation: str) -> Path:
    """The rules for records, with duplicates as the corpus' curation defines them: else its index could not be used."""
    found = load_curation(records).model_copy(update={"dedup": load_curation(curation).dedup})
    path.write_text(yaml.safe_dump(found.model_dump(mode="json")), encoding="utf-8")
    return path


def _write_documents(delivery: Delivery, key: str, documents: str, scratch: Path) -> None:
    """One file of records as a shard of documents; a row that is no conversation gets no text, so it is quarantined."""
    target = f"{delivery.domain}/{stem(key)[0]}.{delivery.files[key][:16]}.jsonl.zst"
    if open_store(documents).exists(target):
        return
    landing = open_store(delivery.landing)
    write_shard(scratch / "shard.jsonl.zst", (_document(item) for item in read_shard(landing, key)))
    if checksum(landing, key) != delivery.files[key]:
        raise DataError(f"{join(delivery.landing, key)}: changed while it was read; start again with what is there now")
    open_store(documents).upload(scratch / "shard.jsonl.zst", target)


def _document(item: Any) -> dict[str, Any]:
    if not isinstance(item, Row):
        return {item.reason if isinstance(item, BadRow) else "damaged end of the file": None}
    try:
        messages = read_conversation(item.record)
    except Unusable as error:
        return {str(error)[:150]: None}  # curation names a record's keys where it finds no text
    said = "\n\n".join(message["content"] for message in messages)
    kept = {name: item.record[name] for name in ("id", "source", "category") if isinstance(item.record.get(name), str)}
    return {**kept, "kind": "dialogue", "text": said, "messages": messages}


def _write_records(corpus: str, folder: str) -> str:
    """The conversations of a curated corpus, in its order, as instruction records. Returns the folder's URI."""
    with tempfile.TemporaryDirectory(prefix="athanor-") as scratch:
        write_shard(Path(scratch) / RECORDS, (record for _, record in _kept(corpus)))
        open_store(folder).upload(Path(scratch) / RECORDS, RECORDS)
    return open_store(folder).uri


def _kept(corpus: str) -> list[tuple[str, dict[str, Any]]]:
    """(shard, record) of every record that curation kept."""
    store, found = open_store(corpus), []
    for key in sorted(read_artifact(corpus).files):
        if not key.startswith("curated/"):
            continue
        with store.open(key) as stream:
            rows = read_table(stream, columns=["doc_id", "source", "extra", "shard"]).to_pylist()
        for row in rows:
            said = orjson.loads(row["extra"])
            record = {"id": row["doc_id"], "source": row["source"], "category": said.get("category", "general")}
            found.append((row["shard"], {**record, "messages": said["messages"]}))
    return found


def count_new(delivery: Delivery, corpus: str, *, store: str, model: str) -> int:
    """Tokens of the kept records that no released model of the domain was trained on, by the model's own tokenizer."""
    from tasks.tokens.chat import UnfitRecord, encode_conversation
    from tasks.tokens.tokenizer import load_tokenizer

    known, tokens = {whole[:16] for whole in known_files(store, delivery.domain)}, 0
    with tempfile.TemporaryDirectory(prefix="athanor-") as scratch:
        tokenizer = load_tokenizer(_tokenizer_files(model, Path(scratch)))
        for shard, record in _kept(corpus):
            if shard.removesuffix(".jsonl.zst").rsplit(".", 1)[1] in known:
                continue
            try:
                tokens += len(encode_conversation(tokenizer, record["messages"])[0])
            except UnfitRecord:
                continue  # training leaves it out as well, and counts it
    return tokens


def _tokenizer_files(model: str, into: Path) -> Path:
    """A local folder with a model's files but for its weights."""
    store = open_store(model)
    here = store.local()
    if here is not None:
        return here
    for entry in store.list():
        if "/" not in entry.key and not entry.key.endswith((".safetensors", ".bin")):
            store.download(entry.key, into / entry.key)
    return into


# -- the training --------------------------------------------------------------------------------------------------


def plan_retraining(
    delivery: Delivery, domain: Domain, *, line: str, records: str, store: str, home: str, parent: dict[str, str]
) -> StageSpec:
    """The training of one delivery from one parent: one job under one key, whoever asks for it."""
    config = domain.stage.model_copy(update={"name": f"{domain.stage.kind}.{domain.name}"})
    return spec_of(
        line,
        config,
        store=store,
        home=home,
        data={"instructions": identify(records)},
        parents={"model": Input(**parent)},
        purpose=[domain.name, delivery.hash],
    )


def release(
    delivery: Delivery, *, line: str, store: str, artifact: str, parent: str, by: str, why: str, run: str = ""
) -> dict[str, Any]:
    """Make an artifact the line's candidate and release it, if its `parent` (a hash) is still what is released.

    Returns {"released": hash, "moved": "", "changed"}; where another model has been released since, nothing changes and
    `moved` says so. Released before, or an ancestor of what is released now: nothing changes either. `changed` tells
    whether it was `run` that released it, also when that run's task is tried again.
    """
    made = read_artifact(artifact)
    current = released_model(store, line)
    if made.hash not in {item.artifact.hash for item in walk(current["uri"]) if item.artifact}:
        said = {"expected_released": parent, "by": by, "why": why, "run": run}
        try:
            promote(store, line, artifact, to="candidate", **said)
            promote(store, line, artifact, to="released", **said)
        except ReleaseMoved as error:
            return {"released": "", "moved": str(error), "changed": False}
    record_trained(store, delivery, line=line, artifact=artifact, model=made.hash, parent=parent, by=by, why=why)
    return {"released": made.hash, "moved": "", "changed": released_by(store, line, made.hash, run)}


def figures(store: str, model: str) -> dict[str, float]:
    """What a person needs to know for an approval: in the domain and in general, before and after."""
    metrics = read_json(join(store, "evaluations", model, "metrics.json"))
    names = ("parent_heldout_loss", "heldout_loss", "parent_general_loss", "general_loss", "general_loss_rise")
    return {name: metrics[name] for name in names if metrics.get(name) is not None}
