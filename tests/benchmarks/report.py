"""The benchmark's table, and `REPORT.md`."""

import os
import platform
from pathlib import Path
from typing import Any

from tests.benchmarks import rollout
from tests.benchmarks.corpus import CHINESE, ENGLISH

REPORT = Path(__file__).with_name("REPORT.md")
FIXED = (
    "on so little text the fixed cost of its steps (leases, manifests, statuses, Dask's event loop, which runs on "
    "while the machine is busy with other work) is a large part of the time, as *Growth* shows."
)
Figures = dict[str, dict[str, Any]]
FACTORS = {
    "signatures": ("MinHash signatures from text", 100),
    "rules": ("all English rules", 50),
    "curation": ("curation at document level", 40),
}


def rate(side: dict[str, Any]) -> str:
    return f"{side['bytes'] / 1e6 / side['seconds']:.2f} MB/s"


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """(work, here, datatrove, factor, bar, whether the bar is met) of every part that was measured."""
    out: list[tuple[str, ...]] = []
    for part, (name, bar) in FACTORS.items():
        if part in figures:
            found = figures[part]
            factor = found["factor"]
            line = (name, rate(found["ours"]), rate(found["theirs"]), f"{factor:.0f}×", f"≥ {bar}×", met(factor >= bar))
            out.append(line)
    if "curation" in figures:
        out.append(("the same with paragraphs and sentences", rate(figures["curation"]["levels"]), "", "", "", ""))
    if "languages" in figures:
        ratio = figures["languages"]["ratio"]
        chinese, english = rate(figures["languages"]["chinese"]), rate(figures["languages"]["english"])
        shown = f"{chinese}, English {english}"
        out.append(("Chinese, time per byte", shown, "", f"{ratio:.2f}×", "≤ 2.5×", met(ratio <= 2.5)))
    if "growth" in figures:
        found = figures["growth"]
        exponent, peak = found["exponent"], found["worker_peak_mb"]
        out.append(("1× → 16× the documents", f"exponent {exponent:.2f}", "", "", "≤ 1.1", met(exponent <= 1.1)))
        out.append(("a worker's peak memory", f"{peak:.0f} MB", "", "", "≤ 2048 MB", met(peak <= 2048)))
    if "start" in figures:
        seconds = figures["start"]["seconds"]
        out.append(("warm start", f"{seconds:.2f} s", "", "", "< 3 s", met(seconds < 3)))
    if "agreement" in figures:
        found = figures["agreement"]
        low = min(found["same_words"]["agreement"].values())
        name = f"agreement of each rule, {found['documents']} documents, same words"
        out.append((name, f"lowest {low:.1%}", "", "", "≥ 99.5%", met(low >= 0.995)))
    if "rollout" in figures:
        out += rollout.rows(figures["rollout"])
    return out


def met(good: bool) -> str:
    return "met" if good else "missed"


def write_report(figures: Figures) -> None:
    dates = {part: found["when"] for part, found in figures.items()}
    parts_line = "; ".join(
        f"{part} {found['when']}, {found['megabytes']:g} MB" for part, found in sorted(figures.items())
    )
    lines = [
        "# Benchmark",
        "",
        f"`make bench`, {max(dates.values())}, Python {platform.python_version()}, {os.cpu_count()} cores.",
        "CPU seconds of all processes that did the work, warm, one worker. datatrove 0.10.1, its default tokenizer.",
        f"English: {', '.join(ENGLISH)}. Chinese: {', '.join(CHINESE)}.",
        f"Each part when and on how much: {parts_line}.",
        "",
        "| work | this project | datatrove | factor | bar | |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows(figures)),
        "",
    ]
    for part, title in (("curation", "Where the time of curation goes"), ("limits", "What the machine could do")):
        if part not in figures:
            continue
        lines += [f"## {title}", "", "| step | |", "| --- | --- |"]
        if part == "curation":
            ours = figures[part]["ours"]
            lines += [f"| {name} | {cpu / ours['seconds']:.0%} |" for name, cpu in ours["by_step"].items()]
        else:
            lines += [f"| {name} | {value:.0f} MB/s |" for name, value in figures[part]["mb_per_second"].items()]
        lines.append("")
    if "curation" in figures and figures["curation"]["factor"] < FACTORS["curation"][1]:
        lines += [f"Curation misses its bar on {figures['curation']['ours']['bytes'] / 1e6:.0f} MB: {FIXED}", ""]
    if "growth" in figures:
        lines += ["## Growth", "", "| documents | MB | CPU seconds | MB/s |", "| --- | --- | --- | --- |"]
        for run in figures["growth"]["runs"]:
            lines.append(f"| {run['documents']} | {run['bytes'] / 1e6:.1f} | {run['seconds']:.1f} | {rate(run)} |")
        lines.append("")
    if "agreement" in figures:
        same, default = (figures["agreement"][name]["agreement"] for name in ("same_words", "default"))
        lines += ["## Rules that did not agree everywhere", ""]
        lines += ["| datatrove's rule | with the same words | with spaCy's words, its default |", "| --- | --- | --- |"]
        apart = [rule for rule in sorted(same) if same[rule] < 1 or default[rule] < 1]
        lines += [f"| {rule} | {same[rule]:.2%} | {default[rule]:.2%} |" for rule in apart]
        lines.append("")
    REPORT.write_text("\n".join(lines), encoding="utf-8")
