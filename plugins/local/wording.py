"""Figures as words for the terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.training.job import Job

# What a summary says of a stage beside its figure before and after, as far as the stage has it.
TELLING = ("tokens", "tokens_per_second", "perplexity", "heldout_kl", "synthetic_share")


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def facts(result: Any, seconds: float) -> str:
    """What a finished task's result says, in a few words."""
    if not isinstance(result, Mapping):
        return ""
    words = []
    if result.get("reused") is True:
        words.append("reused: the same inputs were worked on before")
    if "read" in result and "kept" in result:
        words.append(verdicts(result))
    elif "documents" in result:
        words.append(work(result, seconds))
    if "verdict" in result:
        words.append(f"{result['verdict']}  {result.get('report', '')}")
    if isinstance(result.get("metrics"), Mapping):
        words.append(achieved(result["metrics"]))
    return ", ".join(words)


def verdicts(counts: Mapping[str, Any]) -> str:
    return (
        f"{counts['read']:,} read = {counts['kept']:,} kept + {counts['dropped']:,} dropped "
        f"+ {counts['quarantined']:,} quarantined"
    )


def work(done: Mapping[str, Any], seconds: float) -> str:
    """Documents and bytes with their rate; what was reused has no rate."""
    words = f"{done['documents']:,} documents"
    if "bytes" in done:
        words += f", {megabytes(done['bytes'])}"
    reused = done.get("reused", 0)
    if reused and reused >= done.get("shards", 0):
        return f"{words}, reused"
    if seconds:
        words += f", {done['documents'] / seconds:,.0f} documents/s"
        if "bytes" in done:
            words += f", {done['bytes'] / seconds / 1e6:.1f} MB/s"
    return words + (f", {reused} shards reused" if reused else "")


def achieved(metrics: Mapping[str, Any]) -> str:
    """What a stage achieved: its one measure before and after, and a few figures beside it."""
    beside = figures({key: metrics[key] for key in TELLING if key in metrics})
    change = f"{number(metrics['before'])} → {number(metrics['after'])} {metrics['measure']}"
    return f"{change}; {beside}" if beside else change


def figures(metrics: Mapping[str, Any], most: int = 6) -> str:
    """The first numbers of a metrics record."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float) and value is not True}
    return ", ".join(f"{key} {number(value)}" for key, value in list(numbers.items())[:most])


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def job_progress(folder: str) -> str:
    """Step, loss and tokens/s of a training job, from its folder."""
    if not Path(folder).is_dir():
        return ""
    progress = Job.load(folder).status().progress
    return steps(progress) if progress else "starting"


def steps(progress: Mapping[str, Any]) -> str:
    """`step 40 of 120, loss 5.12, 2,980 tokens/s`; a job without a loss says what it does."""
    words = [f"step {progress['step']} of {progress['steps']}"]
    if "loss" in progress:
        words.append(f"loss {progress['loss']:.3f}")
    if "reward" in progress:
        words.append(f"reward {progress['reward']:.3f}")
    if "tokens_per_second" in progress:
        words.append(f"{progress['tokens_per_second']:,.0f} tokens/s")
    return ", ".join([*words, *([progress["what"]] if "what" in progress else [])])


def work_progress(progress: Mapping[str, Any] | None, seconds: float) -> str:
    """Shards, documents and bytes of a task at work since `seconds`."""
    if not progress:
        return ""
    done = {key: progress[key] for key in ("documents", "bytes")}
    return f"{progress['shards_done']} of {progress['shards']} shards, {work(done, seconds)}"
