"""The steps of one level, documents or paragraphs, each over all parts: from members to who loses to whom."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from distributed import Client

from tasks.curation.cluster import map_shards
from tasks.curation.dedup import walk
from tasks.curation.dedup.candidates import write_candidates
from tasks.curation.dedup.links import large_star, link, small_star
from tasks.curation.dedup.plan import Run, load_run
from tasks.errors import DataError, StorageError


def find_duplicates(
    client: Client, work: str, level: str, members: Callable[[int, str], dict[str, int]]
) -> dict[str, Any]:
    """All steps of one level, each over all parts, up to the pieces `<level>/decided`. Returns what they counted."""
    run = load_run(work)
    parts = run.parts(level)
    each(client, members, run, parts, work)
    links = each(client, link, run, parts, work, level)
    rounds, changed = 0, sum(status["edges"] for status in links)
    while changed:
        big = each(client, large_star, run, parts, work, level, rounds + 1)
        small = each(client, small_star, run, parts, work, level, rounds + 2)
        rounds += 2
        changed = sum(status["changed"] for status in [*big, *small])
    read = each(client, write_candidates, run, parts, work, level, rounds)
    decided = each(client, walk.decide, run, parts, work, level)
    sizes: Counter[int] = Counter()
    for status in decided:
        sizes.update({int(size): count for size, count in status["clusters"].items()})
    return {
        "clusters": sum(sizes.values()),
        "cluster_sizes": {str(size): count for size, count in sorted(sizes.items())},
        "candidates": sum(status["units"] for status in decided),
        "cut_short": sum(status["cut_short"] for status in decided),
        "text_read": {
            name: sum(status[f"{name}_read"] for status in read[: len(run.plan.parts)])
            for name in ("documents", "shards")
        },
        "earlier_text_read": {
            name: sum(status[f"{name}_read"] for status in read[len(run.plan.parts) :])
            for name in ("documents", "shards")
        },
    }


def each(client: Client, step: Callable[..., Any], run: Run, parts: int, *arguments: Any) -> list[Any]:
    """`step(part, …)` for every part. Raises the first failure's error, after all others are done."""
    results, failures = map_shards(client, step, range(parts), *arguments)
    if failures:
        part, error = failures[0]
        kind = StorageError if isinstance(error, StorageError) else DataError
        shards = ", ".join(shard.key for shard in run.shards(part)[:3]) if part < len(run.plan.parts) else "the index"
        raise kind(
            f"clustering, {step.__name__}, part {part} ({shards} …): {error}; finished parts are kept, clear this task"
        ) from error
    return results
