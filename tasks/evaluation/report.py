"""The report of a trained stage: curves, before and after, samples, events, in one HTML file that needs nothing else.

It lies beside the figures that the stage's gate reads: STORE/evaluations/<artifact hash>/report.html.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tasks.corpus.artifact import Artifact, read_artifact
from tasks.corpus.privacy import excerpt, mask
from tasks.corpus.storage import join, open_store
from tasks.evaluation.charts import Chart, chart
from tasks.pages import page_template
from tasks.training.context import METRICS
from tasks.training.job import EVENTS
from tasks.training.plan import StageSpec
from tasks.training.symptoms import RUNBOOK

TEMPLATE = Path(__file__).parent / "report.html.jinja"
NAME = "report.html"
SHOWN_EVENTS = 50
Line = Mapping[str, Any]
CHARTS: tuple[tuple[str, str, bool], ...] = (  # key of a line of progress, what it is, logarithmic or not
    ("reward", "Reward", False),
    ("kl", "Distance from the reference, nats a token", False),
    ("kl_coefficient", "Coefficient of the KL penalty", True),
    ("entropy", "Entropy of the policy, nats a token", False),
    ("answer_tokens", "Tokens of an answer", False),
    ("learning_rate", "Learning rate", False),
    ("grad_norm", "Gradient norm, before clipping", True),
    ("tokens_per_second", "Tokens a second, all ranks", False),
    ("update_ratio", "Norm of the update over that of the weights", True),
    ("activation_max", "Largest activation", False),
    ("communication_share", "Share of the ranks' time in communication", False),
    ("padding_share", "Share of padding", False),
    ("memory_mb", "Memory of the first rank, peak, MiB", False),
)
REWARD = "parent_heldout_reward"  # its zero means nothing, and so would a share of it
PAIRS: tuple[tuple[str, str, str, bool], ...] = (  # what, key before, key after, whether less is better
    ("Reward on held-out prompts", REWARD, "heldout_reward", False),
    ("Pairs put in order (before: always the longer answer)", "longer_is_better", "accuracy", False),
    ("Held-out response loss, nats a token", "parent_heldout_loss", "heldout_loss", True),
    ("Held-out loss, nats a token (before: unigram model)", "unigram_loss", "heldout_loss", True),
    ("Loss on pretraining's held-out text, nats a token", "parent_general_loss", "general_loss", True),
    ("Perplexity of pretraining's held-out text", "parent_general_perplexity", "general_perplexity", True),
    ("Next-token accuracy on it", "parent_general_accuracy", "general_accuracy", False),
    ("Words that are rare in the records' answers", "parent_rare_words", "rare_words", True),
    ("Harmful prompts refused", "parent_harmful_refused", "harmful_refused", False),
    ("Harmless prompts refused", "parent_harmless_refused", "harmless_refused", True),
)


def report_uri(store: str, artifact_hash: str) -> str:
    """Where the report of an artifact lies."""
    return join(store, "evaluations", artifact_hash, NAME)


def write_report(spec: StageSpec, metrics: Mapping[str, Any]) -> str:
    """Write the report of a finished, measured stage; returns its URI. The same files give the same page."""
    artifact = read_artifact(spec.artifact)
    page = render(spec, artifact, metrics, _lines(spec.artifact, METRICS), _lines(spec.artifact, EVENTS))
    open_store(join(spec.store, "evaluations", artifact.hash)).write(NAME, page.encode())
    return report_uri(spec.store, artifact.hash)


def _lines(artifact: str, name: str) -> list[dict[str, Any]]:
    store = open_store(artifact)
    return [orjson.loads(line) for line in store.read(name).splitlines()] if store.exists(name) else []


def render(
    spec: StageSpec, artifact: Artifact, metrics: Mapping[str, Any], lines: Sequence[Line], events: Sequence[Line]
) -> str:
    """The page. All that comes from data is masked here and escaped by the template."""
    symptoms = [{**item, "where": "output"} for item in metrics.get("symptoms", [])]
    happened = [_event(event) for event in [*events[-SHOWN_EVENTS:], *symptoms]]
    return page_template(TEMPLATE, number=number).render(
        spec=spec,
        artifact=artifact,
        measure=metrics.get("measure", ""),
        before=metrics.get("before"),
        after=metrics.get("after"),
        better=_better(metrics),
        facts=facts(spec, metrics, lines),
        charts=charts(lines, events),
        pairs=pairs(metrics),
        tables=tables(metrics),
        samples=samples(metrics),
        events=happened,
        left_out=max(0, len(events) - SHOWN_EVENTS),
        runbook=RUNBOOK,
        config=_dotted(spec.config.model_dump()),
    )


def _better(metrics: Mapping[str, Any]) -> bool | None:
    """Whether the main figure moved the right way: a loss down, bytes a token up."""
    before, after = metrics.get("before"), metrics.get("after")
    if before is None or after is None or before == after:
        return None
    return (after < before) == ("loss" in metrics.get("measure", ""))


def facts(spec: StageSpec, metrics: Mapping[str, Any], lines: Sequence[Line]) -> list[tuple[str, str]]:
    """The run in a few words."""
    found = [("recipe", spec.recipe), ("kind", spec.kind), ("seed", str(spec.config.seed))]
    for key, words in (
        ("parameters", "parameters"),
        ("steps", "steps"),
        ("best_step", "best step, which is published"),
        ("train_tokens", "tokens trained on"),
        ("tokens_per_second", "tokens a second"),
        ("train_seconds", "seconds"),
        ("ranks", "processes"),
        ("rollbacks", "rollbacks"),
        ("vocab_size", "vocabulary"),
        ("documents", "documents"),
        ("generation", "generation"),
        ("synthetic_share", "share of pairs that a rule made, not people"),
    ):
        if metrics.get(key) is not None:
            found.append((words, number(metrics[key])))
    if lines and (peak := max((line.get("memory_mb", 0) for line in lines), default=0)):
        found.append(("memory of the first process, peak", f"{peak:,} MiB"))
    return found


def charts(lines: Sequence[Line], events: Sequence[Line]) -> list[Chart]:
    """Every curve that the lines of progress hold."""
    marks = [(float(event["step"]), event["event"]) for event in events if isinstance(event.get("step"), int)]

    def series(key: str) -> list[tuple[float, float]]:
        return [(line["step"], line[key]) for line in lines if isinstance(line.get(key), int | float)]

    def by_name(key: str) -> dict[str, list[tuple[float, float]]]:
        names = sorted({name for line in lines for name in line.get(key, {})})
        return {
            name: [(line["step"], line[key][name]) for line in lines if name in line.get(key, {})] for name in names
        }

    drawn = [chart("Loss, nats a token", {"training": series("loss"), "held out": series("heldout_loss")}, marks=marks)]
    drawn += [chart(title, {title: series(key)}, log=log, marks=marks) for key, title, log in CHARTS]
    drawn.append(chart("Rewards by name", by_name("rewards")))
    drawn.append(chart("Held-out loss by group, nats a token", by_name("heldout_loss_by_category")))
    drawn.append(chart("Weights of the curriculum", by_name("weights")))
    return [found for found in drawn if found]


def pairs(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Figures before and after, with how much they changed."""
    found = []
    for words, before, after, less in PAIRS:
        old, new = metrics.get(before), metrics.get(after)
        if old is None or new is None:
            continue
        change = f"{(new / old - 1):+.1%}" if old and before != REWARD else f"{new - old:+.3g}"
        good = None if math.isclose(old, new) else (new < old) == less
        found.append({"what": words, "before": number(old), "after": number(new), "change": change, "good": good})
    return found


def tables(metrics: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Losses by group, and a tokenizer's fertility."""
    found = [
        (words, [(mask(str(name)), number(value)) for name, value in sorted(metrics[key].items())])
        for key, words in (
            ("heldout_loss_by_group", "Held-out loss by language or code, nats a token"),
            ("heldout_loss_by_source", "Held-out loss by source, nats a token"),
            ("heldout_loss_by_category", "Held-out response loss by category, nats a token"),
            ("heldout_loss_by_turn", "Held-out response loss by turn, nats a token"),
            ("shares", "Shares of the tokens trained on"),
        )
        if metrics.get(key)
    ]
    fertility = [
        (key.removeprefix("fertility_"), number(metrics[key])) for key in metrics if key.startswith("fertility_")
    ]
    return found + ([("Tokens a word (in Chinese, a character)", fertility)] if fertility else [])


def samples(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """Generated texts, masked: prompt, what the parent wrote where there is one, what this model wrote."""
    parents = metrics.get("parent_samples", [])
    return [
        {
            "prompt": excerpt(item["prompt"], 600),
            "before": excerpt(parents[i]["text"], 600) if i < len(parents) else "",
            "after": excerpt(item["text"], 600),
        }
        for i, item in enumerate(metrics.get("samples", []))
    ]


def _event(event: Line) -> dict[str, Any]:
    """An event as it is shown: its name, its step, the evidence, the change of the recipe that it proposes."""
    hidden = ("event", "step", "remedy", "runbook", "evidence", "where")
    evidence = {**{key: value for key, value in event.items() if key not in hidden}, **event.get("evidence", {})}
    return {
        "name": event["event"],
        "step": event.get("step"),
        "output": event.get("where") == "output",
        "evidence": [(key, excerpt(words(value), 400)) for key, value in evidence.items()],
        "remedy": [f"{key}: {words(value)}" for key, value in (event.get("remedy") or {}).items()],
    }


def words(value: Any) -> str:
    """A value of an event in a line."""
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def number(value: float | str) -> str:
    """A figure for a person: whole numbers with separators, others with four digits that count."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _dotted(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _dotted(value, f"{prefix}{key}.")
        elif value is not None and value != () and value != []:
            found.append((prefix + key, words(value)))
    return found
