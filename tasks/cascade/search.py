"""A small search: one stage trained with every combination of a few values, as a table and a plot.

Each trial is a recipe of its own (the given one with the values put in), so finished ones are reused, and any of them
can be run again by its file.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

import yaml

from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import AthanorError, ConfigError
from tasks.evaluation.stages import evaluate_stage
from tasks.settings import named_file
from tasks.training.job import submit
from tasks.training.plan import StageSpec, plan_stage
from tasks.training.recipe import load_recipe

MOST_TRIALS = 64
Tell = Callable[[str], None]


def parse_grid(arguments: Iterable[str]) -> dict[str, list[Any]]:
    """`["optimizer.learning_rate=1e-3,3e-3"]` → {key: values}; values are read as YAML. Raises ConfigError."""
    grid: dict[str, list[Any]] = {}
    for argument in arguments:
        key, sign, listed = argument.partition("=")
        values = [_value(text) for text in listed.split(",") if text.strip()]
        if not key or not sign or not values or key in grid:
            raise ConfigError(f"--grid {argument}: expected KEY=VALUE,VALUE…, each key once, e.g. steps=100,200")
        grid[key] = values
    trials = math.prod(len(values) for values in grid.values())
    if not grid or trials > MOST_TRIALS:
        raise ConfigError(f"--grid: {trials if grid else 'no'} combinations; between 1 and {MOST_TRIALS} can be tried")
    return grid


def search(
    recipe: str,
    stage: str,
    grid: dict[str, list[Any]],
    *,
    store: str,
    home: str,
    corpus: str = "",
    instructions: str = "",
    parents: dict[str, str] | None = None,
    metric: str = "heldout_loss",
    tell: Tell = print,
) -> list[dict[str, Any]]:
    """Train and measure every combination; the trials, best (lowest `metric`) first.

    Writes `trials.json` and `search.html` to STORE/searches/<recipe>.<stage>, and each trial's recipe beside them. A
    trial that fails is listed with its reason, and the others go on. Raises ConfigError for a key or value that the
    recipe's schema refuses, before anything is trained.
    """
    plan = load_recipe(recipe)
    plan.stage(stage)
    where = join(store, "searches", f"{plan.name}.{stage}")
    folder = Path(home) / "searches" / f"{plan.name}.{stage}"
    folder.mkdir(parents=True, exist_ok=True)
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    files = [_trial_recipe(recipe, stage, values, folder / f"{i:03d}.yaml") for i, values in enumerate(combinations)]
    trials = []
    for values, file in zip(combinations, files, strict=True):
        trial: dict[str, Any] = {"values": values, "recipe": file.name, metric: None, "error": ""}
        try:
            spec = plan_stage(
                str(file),
                stage,
                store=store,
                home=home,
                corpus=corpus,
                instructions=instructions,
                parents=parents,
            )
            trial |= _measured(spec, metric)
        except ConfigError:
            raise
        except AthanorError as error:
            trial["error"] = str(error)
        trials.append(trial)
        said = trial["error"] or f"{metric} {trial[metric]:.4f}"
        tell(f"{', '.join(f'{key}={value}' for key, value in values.items())}: {said}")
    trials.sort(key=lambda trial: (trial[metric] is None, trial[metric] or 0.0))
    results = open_store(where)
    results.write("trials.json", to_json({"schema_version": 1, "metric": metric, "grid": grid, "trials": trials}))
    results.write("search.html", page(f"{plan.name}: {stage}", metric, grid, trials).encode())
    tell(f"search: {join(where, 'search.html')}")
    return trials


def _measured(spec: StageSpec, metric: str) -> dict[str, Any]:
    """Train (or find trained) one trial and read its figure. Raises AthanorError when training fails."""
    job = submit(spec)
    try:
        status = job.wait()
    except BaseException:  # an interrupt must not leave the trainer running behind the terminal's back
        job.cancel()
        raise
    if status.state != "succeeded":
        raise AthanorError(status.message)
    metrics = evaluate_stage(spec)
    if not isinstance(metrics.get(metric), int | float):
        numbers = sorted(name for name, value in metrics.items() if isinstance(value, int | float))
        raise ConfigError(f"--metric {metric}: this stage measures {', '.join(numbers)}")
    return {metric: metrics[metric], "artifact": spec.artifact, "seconds": metrics.get("train_seconds")}


def _value(text: str) -> Any:
    try:
        return float(text)  # YAML would read 1e-3 as a text
    except ValueError:
        return yaml.safe_load(text)


def _trial_recipe(recipe: str, stage: str, values: dict[str, Any], path: Path) -> Path:
    """The recipe with values put into one stage, written and checked."""
    data = yaml.safe_load(named_file("recipes", recipe).read_text(encoding="utf-8"))
    (config,) = [item for item in data["stages"] if item["name"] == stage]
    for key, value in values.items():
        *outer, name = key.split(".")
        place = config
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--grid {key}: '{part}' of stage '{stage}' holds no keys")
        place[name] = int(value) if isinstance(value, float) and value.is_integer() and abs(value) >= 1 else value
    path.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")
    load_recipe(str(path))
    return path


def page(title: str, metric: str, grid: dict[str, list[Any]], trials: list[dict[str, Any]]) -> str:
    """Table and plot of a search as one HTML file that needs nothing else."""
    head = "".join(f"<th>{escape(name)}</th>" for name in [*grid, metric, "seconds", "recipe"])
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{escape(str(trial['values'][key]))}</td>" for key in grid)
        + f"<td>{escape(trial['error']) if trial[metric] is None else format(trial[metric], '.4f')}</td>"
        + f"<td>{escape(str(trial.get('seconds') or ''))}</td><td>{escape(trial['recipe'])}</td></tr>"
        for trial in trials
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>Search {escape(title)}</title>"
        "<style>body{font:15px system-ui;margin:2em;max-width:60em}td,th{padding:.3em .8em;text-align:left;"
        "border-bottom:1px solid #ccc}tr:nth-child(2){font-weight:bold}</style>"
        f"<h1>Search {escape(title)}</h1><p>{len(trials)} trials, the lowest {escape(metric)} first.</p>"
        f"{plot(metric, grid, trials)}<table><tr>{head}</tr>{rows}</table>"
    )


def plot(metric: str, grid: dict[str, list[Any]], trials: list[dict[str, Any]]) -> str:
    """The metric over the first key's values, one line for each combination of the others, as inline SVG."""
    first, *others = grid
    done = [trial for trial in trials if trial[metric] is not None]
    if not done:
        return "<p>No trial succeeded.</p>"
    low, high = min(trial[metric] for trial in done), max(trial[metric] for trial in done)
    width, height, left, bottom = 640, 320, 70, 40
    places = {str(value): left + (i + 0.5) * (width - left) / len(grid[first]) for i, value in enumerate(grid[first])}

    def up(value: float) -> float:
        return 20 + (height - bottom - 40) * (1 - (value - low) / ((high - low) or 1))

    marks = []
    lines = sorted({tuple(str(trial["values"][key]) for key in others) for trial in done})
    for number, line in enumerate(lines):
        colour = f"hsl({number * 360 // len(lines)} 60% 40%)"
        mine = [trial for trial in done if tuple(str(trial["values"][key]) for key in others) == line]
        points = sorted((places[str(trial["values"][first])], up(trial[metric])) for trial in mine)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        marks += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        if others:
            label, (x, y) = escape(", ".join(f"{k}={v}" for k, v in zip(others, line, strict=True))), points[-1]
            marks.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{label}</text>')
    for value, x in places.items():
        marks.append(f'<text x="{x:.1f}" y="{height - 18}" text-anchor="middle">{escape(value)}</text>')
    for value in (low, high):
        marks.append(f'<text x="{left - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{value:.3f}</text>')
    return (
        f'<svg viewBox="0 0 {width + 160} {height}" font-size="12" font-family="system-ui" role="img" '
        f'aria-label="{escape(metric)} over {escape(first)}">{"".join(marks)}'
        f'<text x="{(width + left) / 2}" y="{height - 2}" text-anchor="middle">{escape(first)}</text></svg>'
    )
