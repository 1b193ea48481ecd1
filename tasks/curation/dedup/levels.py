"""The steps of one level, documents or paragraphs, each over all parts: from members to who loses to whom.

Links and candidates depend on signals alone, and stay for the next run over the same ones; the walk decides among those
that take part.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from distributed import Client

from tasks.corpus.storage import open_store, to_json
from tasks.curation.cluster import map_shards
from tasks.curation.dedup import walk
from tasks.curation.dedup.candidates import write_candidates
from tasks.curation.dedup.links import large_star, link, small_star
from tasks.curation.dedup.plan import DOCUMENT, Run, load_run
from tasks.errors import DataError, StorageError

LINKED = "linked.json"
Members = Callable[[int, str], dict[str, int]]


def find_candidates(client: Client, work: str, level: str, members: Members) -> dict[str, Any]:
    """From members to candidates: the pieces `<level>/members` and `<level>/candidates`. Returns what was read.

    Nothing is done when that is finished in this folder.
    """
    run, name = load_run(work), f"{level}/{LINKED}"
    if run.store.exists(name):
        return orjson.loads(run.store.read(name))
    parts, own = run.parts(level), len(run.plan.parts)
    each(client, members, run, parts, work)
    links = each(client, link, run, parts, work, level)
    rounds, changed = 0, sum(status["edges"] for status in links)
    while changed:
        big = each(client, large_star, run, parts, work, level, rounds + 1)
        small = each(client, small_star, run, parts, work, level, rounds + 2)
        rounds += 2
        changed = sum(status["changed"] for status in [*big, *small])
    read = each(client, write_candidates, run, parts, work, level, rounds)
    found = {
        which: {name: sum(status[f"{name}_read"] for status in some) for name in ("documents", "shards")}
        for which, some in (("text_read", read[:own]), ("earlier_text_read", read[own:]))
    }
    run.store.write(name, to_json(found))
    return found


def clear_links(work: str, level: str) -> None:
    """Delete the pieces from which the candidates were made; of the documents' members the index will be made."""
    store = open_store(work)
    for old in list(store.list(f"{level}/")):
        step = old.key.split("/")[1]
        if step == "bands" or step.startswith("edges-") or (step == "members" and level != DOCUMENT):
            store.delete(old.key)


def decide(client: Client, work: str, level: str) -> dict[str, Any]:
    """The walk over the candidates that take part: the pieces `<level>/decided`. Returns what it counted."""
    run = load_run(work)
    decided = each(client, walk.decide, run, run.parts(level), work, level)
    sizes: Counter[int] = Counter()
    for status in decided:
        sizes.update({int(size): count for size, count in status["clusters"].items()})
    return {
        "clusters": sum(sizes.values()),
        "cluster_sizes": {str(size): count for size, count in sorted(sizes.items())},
        "candidates": sum(status["units"] for status in decided),
        "cut_short": sum(status["cut_short"] for status in decided),
    }


def each(client: Client, step: Callable[..., Any], run: Run, parts: int, *arguments: Any) -> list[Any]:
    """`step(part, …)` for every part. Raises the first failure's error, after all others are done."""
    results, failures = map_shards(client, step, range(parts), *arguments)
    if failures:
        part, error = failures[0]
        kind = StorageError if isinstance(error, StorageError) else DataError
        own = run.plan.parts[part] if part < len(run.plan.parts) else []
        shards = ", ".join(shard.key for shard in own[:3]) or "the index"
        raise kind(
            f"clustering, {step.__name__}, part {part} ({shards} …): {error}; finished parts are kept, clear this task"
        ) from error
    return results
