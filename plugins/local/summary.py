"""The end of a run, in words: what was read, kept and dropped, what was trained, where it lies."""

from collections.abc import Mapping
from typing import Any

from plugins.local.wording import achieved, megabytes, verdicts
from tasks.corpus.storage import join, read_json
from tasks.settings import Settings

Results = Mapping[str, list[Any]]
MOST_REASONS = 8


def summary(settings: Settings, snapshot: str, curated: Results, trained: Results, stages: list[str]) -> list[str]:
    """Lines for a person. `curated` and `trained` are the results of both runs' tasks by task id."""
    return [
        *corpus_lines(read_json(join(settings.store, "corpus", snapshot, "report.json"))),
        "",
        *[line for stage in stages for line in stage_lines(stage, trained)],
        "",
        *place_lines(settings, snapshot, curated, trained, stages[-1]),
    ]


def corpus_lines(report: Mapping[str, Any]) -> list[str]:
    """Documents read, kept, dropped by reason, quarantined."""
    size = report["bytes"]
    lines = [
        f"corpus {report['snapshot']}",
        f"  documents    {verdicts(report)}",
        f"  text         {megabytes(size['read'])} read, {megabytes(size['kept'])} kept",
    ]
    reasons = sorted(report["reasons"].items(), key=lambda item: (-item[1]["documents"], item[0]))
    lines += [f"    {count['documents']:7,}  {rule}" for rule, count in reasons[:MOST_REASONS]]
    if len(reasons) > MOST_REASONS:
        lines.append(f"             … and {len(reasons) - MOST_REASONS} more rules; a document may fail several")
    left_out = report.get("left_out", [])
    lines += [f"  left out     {shard}: failed, within the budget; repair_shards" for shard in left_out[:5]]
    lines += [
        f"  problem      {problem['shard']}: {problem['what']}; {problem['remedy']}"
        for problem in report.get("problems", [])[:5]
    ]
    return lines


def stage_lines(stage: str, trained: Results) -> list[str]:
    """One stage: before → after, tokens, reused or not."""
    train, measured = _last(trained, f"{stage}.train"), _last(trained, f"{stage}.evaluate")
    if train is None or measured is None:
        return [f"stage {stage:11} skipped"]
    return [f"stage {stage:11} {achieved(measured['metrics'])}" + ("  (reused)" if train["reused"] else "")]


def place_lines(settings: Settings, snapshot: str, curated: Results, trained: Results, last: str) -> list[str]:
    """Where the model and the reports are."""
    lines = [f"corpus       {join(settings.store, 'corpus', snapshot)}"]
    model = _last(trained, f"{last}.train")
    if model is not None:
        metrics = (_last(trained, f"{last}.evaluate") or {}).get("metrics", {})
        lines.append(f"model        {model['artifact']}  ({', '.join(['candidate', *generation(metrics)])})")
    gates = [
        result
        for task_id, results in [*curated.items(), *trained.items()]
        for result in results
        if task_id.split(".")[-1].startswith("gate") and result
    ]
    lines += [f"gate         {gate['contract']:13} {gate['verdict']:8} {gate['report']}" for gate in gates]
    for task_id, results in trained.items():
        if task_id.endswith(".evaluate") and results and results[-1] and "report" in results[-1]:
            lines.append(f"report       {task_id.removesuffix('.evaluate'):22} {results[-1]['report']}")
    return lines


def generation(metrics: Mapping[str, Any]) -> list[str]:
    """`Gen-0` and so on, where a stage makes one."""
    return [metrics["generation"]] if "generation" in metrics else []


def _last(results: Results, task_id: str) -> Any:
    found = results.get(task_id) or [None]
    return found[-1]
