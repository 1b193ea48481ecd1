"""The report of a gate: one HTML file without scripts or anything from the network, in light and dark."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.gates.contract import Contract, Frame
from tasks.gates.wording import number
from tasks.pages import page_template

if TYPE_CHECKING:
    from markupsafe import Markup

    from tasks.gates.gate import GateResult
    from tasks.gates.validation import Outcome

TEMPLATE = Path(__file__).parent / "report.html.jinja"
HEADLINES = {"passed": "Passed", "warning": "Passed with warnings", "refused": "Refused"}


def render(terms: Contract, result: "GateResult") -> str:
    """The page. All that comes from data is escaped by the template, and was masked when the rows were taken."""
    return page_template(TEMPLATE, number=number, prose=prose).render(
        terms=terms,
        result=result,
        headline=HEADLINES[result.verdict],
        sentence=sentence(result),
        frames=[_section(name, frame, result.outcomes) for name, frame in terms.frames.items()],
        titles={name: frame.title for name, frame in terms.frames.items()},
    )


def sentence(result: "GateResult") -> str:
    """The outcome in one sentence."""
    failed = result.failures
    if not failed:
        return f"All {len(result.outcomes):,} checks hold."
    critical = sum(outcome.severity == "critical" for outcome in failed)
    parts = [f"{critical:,} critical"] if critical else []
    if warnings := len(failed) - critical:
        parts.append(f"{warnings:,} {'warning' if warnings == 1 else 'warnings'}")
    consequence = "What follows does not run." if critical else "What follows may run."
    return f"{len(failed):,} of {len(result.outcomes):,} checks failed ({', '.join(parts)}). {consequence}"


def _section(name: str, frame: Frame, outcomes: "list[Outcome]") -> dict[str, Any]:
    held = [outcome for outcome in outcomes if outcome.frame == name and outcome.success]
    return {
        "title": frame.title,
        "held": [outcome for outcome in held if not outcome.structure],
        "as_declared": not any(
            outcome.frame == name and outcome.structure and not outcome.success for outcome in outcomes
        )
        and bool(held),
        "columns": list(frame.columns),
    }


def prose(text: str) -> "Markup":
    """A contract's sentence, escaped, with what stands between backticks set as code."""
    from markupsafe import Markup

    parts = text.split("`")
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))
