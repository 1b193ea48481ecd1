"""The report of a run: what each rule removed, what it nearly removed, and examples for a person to judge.

`gather` reads verdicts and signals, and the text of the chosen examples alone. `draw` writes one HTML file that opens
offline; its verdict buttons give a CSV.
"""

import hashlib
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.corpus.document import Document, parse_record
from tasks.corpus.manifest import Manifest, Shard, read_manifest
from tasks.corpus.parquet import read_table
from tasks.corpus.privacy import excerpt
from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import join, open_store, read_json
from tasks.curation.config import CurationConfig
from tasks.curation.signal_files import read_signals
from tasks.curation.text.normalise import normalise
from tasks.errors import DataError
from tasks.pages import page_template

TEMPLATE = Path(__file__).parent / "review.html.jinja"
PAGE = "review.html"
COLUMNS = (
    *("doc_id", "source", "language", "row", "verdict", "reasons", "level", "spans"),
    *("raw_bytes", "removed_bytes", "added_bytes", "written_bytes"),
)
DUPLICATE = ("duplicate_exact", "duplicate_near")
MOST_PARTS = 10  # sources and languages that stand side by side in the picture; the table below it has all
EXCERPT = 600  # characters shown of an example
Cell = dict[str, int]  # {documents, bytes}


def gather(output: str, *, near: float, examples: int, seed: int) -> dict[str, Any]:
    """Everything that the report shows. Raises DataError when the run has not been published.

    A near miss is a document on the good side of a threshold, within the share `near` of it. Examples are chosen by a
    hash of seed, rule and document, so that the same run gives the same ones.
    """
    if not open_store(output).exists("report.json"):
        raise DataError(f"{output}: no report.json; curate first, and let the run end")
    manifest = read_manifest(output)
    config = CurationConfig.model_validate(manifest.curation)
    removal: dict[tuple[str, str, str], Cell] = defaultdict(lambda: {"documents": 0, "bytes": 0})
    levels: dict[tuple[str, str], Cell] = defaultdict(lambda: {"documents": 0, "bytes": 0})
    spans: Counter[str] = Counter()
    parts: dict[tuple[str, str], Cell] = defaultdict(lambda: {"documents": 0, "bytes": 0})
    account: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    drawn: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for shard in manifest.shards:
        close = _near_misses(output, shard, config, near)
        for item in _verdicts(output, shard):
            _count(parts[item["source"], item["language"] or "none"], item)
            account.update(_account(item))
            for reason in item["reasons"]:
                _count(removal[reason["rule"], item["source"], item["language"] or "none"], item)
                _draw(drawn[reason["rule"]], item, shard, reason, seed, examples)
            if item["level"]:
                _count(levels[item["level"], item["reasons"][-1]["rule"]], item)
            for span in item["spans"] or ():
                spans[f"{span.get('level') or 'line'}: {span['rule']}"] += span["end"] - span["start"]
            if item["verdict"] == "kept":
                for rule, reason in close.get(item["row"], {}).items():
                    misses[rule] += 1
                    _draw(drawn[f"kept {rule}"], item, shard, reason, seed, examples)
                _draw(drawn["kept"], item, shard, None, seed, examples)
    return {
        "report": read_json(join(output, "report.json")),
        "near": near,
        "seed": seed,
        "removal": [
            {"rule": rule, "source": source, "language": language, **cell}
            for (rule, source, language), cell in sorted(
                removal.items(), key=lambda item: (-item[1]["documents"], item[0])
            )
        ],
        "parts": [
            {"source": source, "language": language, **cell}
            for (source, language), cell in sorted(parts.items(), key=lambda item: (-item[1]["documents"], item[0]))
        ],
        "account": dict(account),
        "levels": [{"level": level, "rule": rule, **cell} for (level, rule), cell in sorted(levels.items())],
        "spans": dict(sorted(spans.items())),
        "near_misses": dict(misses.most_common()),
        "examples": _with_text(manifest, config, drawn),
    }


def _verdicts(output: str, shard: Shard) -> Iterator[dict[str, Any]]:
    with open_store(output).open(f"verdicts/{shard.id}.parquet") as stream:
        yield from read_table(stream, COLUMNS).to_pylist()


def _account(item: dict[str, Any]) -> dict[str, int]:
    """Where the bytes of one document went. The first level that removes a document counts, so that all adds up."""
    if item["verdict"] == "quarantined":
        return {"quarantined": item["raw_bytes"]}
    if item["verdict"] == "dropped":
        rules = {reason["rule"] for reason in item["reasons"]}
        if rules <= {*DUPLICATE, "remainder_too_short"}:
            return {"duplicate documents" if rules & set(DUPLICATE) else "little left after cuts": item["raw_bytes"]}
        return {"documents that fail rules": item["raw_bytes"]}
    cut: Counter[str] = Counter()
    for span in item["spans"] or ():
        if span["level"] != "line":
            cut[f"{span['level']}s cut"] += span["bytes"]
    rest = item["removed_bytes"] - item["added_bytes"] - cut.total()
    return {**cut, "lines cut, and normalisation": rest, "written": item["written_bytes"]}


def _count(cell: Cell, item: dict[str, Any]) -> None:
    cell["documents"] += 1
    cell["bytes"] += item["raw_bytes"]


def _near_misses(
    output: str, shard: Shard, config: CurationConfig, near: float
) -> dict[int, dict[str, dict[str, Any]]]:
    """Row → rule → {rule, value, threshold} of values that pass, within the share `near` of the threshold."""
    table = read_signals(output, shard, config)
    groups = list(zip(*(table[name].to_pylist() for name in ("language", "kind", "source")), strict=True))
    rows_of: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        rows_of[group].append(number)
    rows = table["row"].to_pylist()
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for group, numbers in rows_of.items():
        for rule, bound in (config.bounds(*group) or {}).items() if group[0] else ():
            values = table[bound.signal].to_numpy()[numbers]
            for threshold, side in ((bound.min, 1), (bound.max, -1)):
                if threshold is None:
                    continue
                distance = side * (values - threshold)
                for place in np.flatnonzero((distance >= 0) & (distance <= near * abs(threshold)) & (threshold != 0)):
                    reason = {"rule": rule, "value": float(values[place]), "threshold": threshold}
                    found[rows[numbers[place]]][rule] = reason
    return found


def _draw(
    chosen: list[tuple[str, dict[str, Any]]],
    item: dict[str, Any],
    shard: Shard,
    reason: dict[str, Any] | None,
    seed: int,
    most: int,
) -> None:
    """Keep the `most` smallest hashes."""
    rule = reason["rule"] if reason else ""
    rank = hashlib.blake2b(f"{seed} {rule} {shard.id} {item['row']}".encode(), digest_size=8).hexdigest()
    shown = {name: item[name] for name in ("doc_id", "source", "language", "row", "verdict")}
    chosen.append((rank, {**shown, "shard": shard.id, "reason": reason}))
    chosen.sort(key=lambda ranked: ranked[0])
    del chosen[most:]


def _with_text(
    manifest: Manifest, config: CurationConfig, drawn: dict[str, list[tuple[str, dict[str, Any]]]]
) -> dict[str, list[dict[str, Any]]]:
    """The examples with an excerpt of their text, personal data masked. Only shards that have one are read."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for ranked in drawn.values():
        for _, item in ranked:
            wanted[item["shard"]].add(item["row"])
    texts: dict[tuple[str, int], str] = {}
    for shard in manifest.shards:
        rows = wanted.get(shard.id)
        if not rows:
            continue
        for read in read_shard(open_store(manifest.landing), shard.key, config.max_record_bytes):
            if isinstance(read, Row) and read.index in rows:
                document = parse_record(read.record, shard.source)
                if isinstance(document, Document):
                    texts[shard.id, read.index] = excerpt(normalise(document.text), EXCERPT)
    return {
        group: [{**item, "text": texts.get((item["shard"], item["row"]))} for _, item in ranked]
        for group, ranked in sorted(drawn.items())
        if ranked
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    report = found["report"]
    for name in ("read", "kept", "dropped", "quarantined"):
        yield f"{name:12} {report[name]:>10,} documents {report['bytes'].get(name, 0) / 1e6:>10.2f} MB"
    yield f"\n{'rule':40} {'source':16} {'language':8} {'documents':>10} {'MB':>10}"
    for item in found["removal"]:
        where = f"{item['source'][:16]:16} {item['language'][:8]:8}"
        yield f"{item['rule'][:40]:40} {where} {item['documents']:>10,} {item['bytes'] / 1e6:>10.2f}"
    yield "\nwhere the bytes went:"
    yield from (f"{name:40} {size:>14,}" for name, size in _flow(found["account"]))
    if found["near_misses"]:
        yield f"\nkept within {found['near']:.0%} of a threshold:"
        yield from (f"{rule:40} {count:>10,}" for rule, count in found["near_misses"].items())
    for item in found["levels"]:
        size = f"{item['documents']:>10,} documents {item['bytes'] / 1e6:>10.2f} MB"
        yield f"duplicates, {item['level']}: {item['rule']:24} {size}"
    for rule, characters in found["spans"].items():
        yield f"cut from kept documents, {rule:32} {characters:>10,} characters"


def draw(output: str, found: dict[str, Any]) -> str:
    """Write `review.html` beside the run's `report.json`; returns its URI."""
    script = (Path(__file__).parent / "review.js").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    drawn = {"by_rule": _by_rule(found["removal"]), "flow": _flow(found["account"]), "grid": _grid(found)}
    template = page_template(TEMPLATE, documents=_documents, size=_size)
    page = template.render(**found, **drawn, script=script, digest=digest)
    open_store(output).write(PAGE, page.encode("utf-8", "replace"))
    return join(output, PAGE)


def _flow(account: dict[str, int]) -> list[tuple[str, int]]:
    """The account in the order in which the levels act; it adds up to what was read."""
    order = ["quarantined", "documents that fail rules", "duplicate documents", "little left after cuts"]
    order += ["lines cut, and normalisation", "paragraphs cut", "sentences cut", "written"]
    return [(name, account[name]) for name in order if name in account]


def _grid(found: dict[str, Any]) -> dict[str, Any]:
    """Rule by source and language: the share of that part's documents that the rule removed."""
    parts = found["parts"][:MOST_PARTS]
    removed = {(item["rule"], item["source"], item["language"]): item for item in found["removal"]}
    rows = []
    for rule in _by_rule(found["removal"]):
        cells = [removed.get((rule["rule"], part["source"], part["language"])) for part in parts]
        shares = [cell["documents"] / part["documents"] if cell else 0 for cell, part in zip(cells, parts, strict=True)]
        rows.append({"rule": rule["rule"], "cells": list(zip(cells, shares, strict=True))})
    return {"parts": parts, "rows": rows, "more": len(found["parts"]) - len(parts)}


def _by_rule(removal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rules by documents removed, each with its sources and languages."""
    rules: dict[str, dict[str, Any]] = {}
    for item in removal:
        rule = rules.setdefault(item["rule"], {"rule": item["rule"], "documents": 0, "bytes": 0, "parts": []})
        rule["documents"] += item["documents"]
        rule["bytes"] += item["bytes"]
        rule["parts"].append(item)
    return sorted(rules.values(), key=lambda rule: (-rule["documents"], rule["rule"]))


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _documents(count: int) -> str:
    return f"{count:,} document{'' if count == 1 else 's'}"
