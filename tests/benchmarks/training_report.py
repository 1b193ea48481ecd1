"""The training benchmark's table, and `TRAINING.md`."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.report import met
from tests.benchmarks.training_trl import PACKAGES

REPORT = Path(__file__).with_name("TRAINING.md")
PROFILE = Path(__file__).with_name("training_profile.md")  # written by hand when a bar is missed: why it is
Figures = dict[str, dict[str, Any]]


def ratio(found: dict[str, Any], one: str, other: str, kind: str) -> float:
    return found[one][kind] / found[other][kind]


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """(work, this project, the other side, factor, bar, whether it is met, when) of every race that was run."""
    out: list[tuple[str, ...]] = []

    def add(race: str, name: str, one: str, other: str, kind: str, bar: float | None) -> None:
        if race not in figures:
            return
        found = figures[race]
        factor = ratio(found, one, other, kind)
        shown = [
            f"{found[side][kind]:,.0f}/s ± {found[side]['spread'] / 2:.0%}"
            + ("" if side in ("own", "TRL") else f" ({side})")
            for side in (one, other)
        ]
        verdict = ("", "") if bar is None else (f"≥ {bar:g}×", met(factor >= bar))
        out.append((name, *shown, f"{factor:.2f}×", *verdict, found["when"]))

    add("unpacked", "supervised tokens, unpacked, against TRL's SFTTrainer", "own", "TRL", "supervised", 1.0)
    add("packed", "supervised tokens, packed, against TRL's packing", "own", "TRL", "supervised", 1.2)
    add("packed", "supervised tokens, packed, against TRL unpacked", "own", "TRL, unpacked", "supervised", None)
    add("bare", "tokens, pretraining, against a bare DeepSpeed loop", "own", "bare", "tokens", 0.95)
    add("watched", "tokens, with checkpoints and detectors against without", "with", "without", "tokens", 0.97)
    two, one = "two ranks, a thread each", "one rank, two threads"
    add("ranks", "tokens, ZeRO-3 on two ranks against one, two cores both", two, one, "tokens", None)
    add("ranks", "tokens, ZeRO-3 on two ranks against one on one core", two, "one rank, one thread", "tokens", None)
    return out


def write_report(figures: Figures) -> None:
    """TRAINING.md: machine, versions, command, table."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "deepspeed"))
    text = [
        "# Training, measured",
        "",
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}; {versions}; "
        f"{', '.join(PACKAGES)}. FP32, SDPA attention, gloo.",
        "",
        "A Llama of 7 M parameters (6 layers of 256, vocabulary 8,192) on real conversations of three sets, cut at 512 "
        "tokens, in one order for both sides; 8 conversations a step unpacked, 4 packed sequences of 512 tokens else. "
        "Both sides are real trainers: this project's runs its stages' own loop (spikes judged, activations and "
        "updates measured, each step written to disk), TRL's SFTTrainer logs each tenth step. They take turns, "
        "round by round, on the same two cores; a figure is the median of the rounds, ± half their spread, on a "
        "machine that is otherwise idle.",
        "",
        "    python -m tests.benchmarks training",
        "",
        "| work | this project | the other side | factor | bar | | when |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows(figures)),
        "",
    ]
    if "slots" in figures:
        text += [
            "Supervised tokens of a computed slot, on the same conversations in batches of 8 rows, each batch as long "
            "as its longest row:",
            "",
            "| rows | supervised tokens a slot |",
            "| --- | --- |",
            *(f"| {name} | {share:.3f} |" for name, share in figures["slots"].items()),
            "",
        ]
    if PROFILE.exists():
        text += [PROFILE.read_text(encoding="utf-8").strip(), ""]
    REPORT.write_text("\n".join(text), encoding="utf-8")


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
