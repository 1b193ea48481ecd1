"""Great Expectations' own pages of a gate (Data Docs), in one file beside the gate's report.

Great Expectations' page loads scripts, styles and pictures from the network, so its sections alone are taken: what it
says of each expectation. They stand in a page of ours, without scripts. What comes from data is masked before.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.corpus.privacy import excerpt
from tasks.pages import page_template

if TYPE_CHECKING:
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult

TEMPLATE = Path(__file__).parent / "data_docs.html.jinja"
SHOWN = 20  # values of a list
NO_MARKUP = str.maketrans("<>", "‹›")
# Left out: whole columns of values, and where each stands.
LEFT_OUT = {"unexpected_list", "unexpected_index_list", "unexpected_index_query", "partial_unexpected_index_list"}


@dataclass(frozen=True)
class Validated:
    """A frame's title, and what Great Expectations found in it."""

    title: str
    result: "ExpectationSuiteValidationResult"


def render(title: str, frames: Sequence[Validated]) -> str:
    """The page: a part a frame, with Great Expectations' sections (an overview, then one a column)."""
    parts = [{"title": frame.title, "sections": _sections(frame.result)} for frame in frames]
    return page_template(TEMPLATE).render(title=title, frames=parts)


def _sections(result: "ExpectationSuiteValidationResult") -> list[str]:
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaSectionView

    document = ValidationResultsPageRenderer(run_info_at_end=True).render(_masked(result))
    view, found = DefaultJinjaSectionView(), []
    for number, section in enumerate(document.sections[:-1], 1):  # the last tells of the batch in memory
        html = view.render({"section": section.to_json_dict(), "section_loop": {"index": number}})
        # No scripts, and no links to pages of a site that is not there.
        found.append(re.sub(r"<script\b.*?</script>|</?a\b[^>]*>", "", html, flags=re.S))
    return found


def _masked(result: "ExpectationSuiteValidationResult") -> "ExpectationSuiteValidationResult":
    """The same, with masked values: renderers put some into the page as they are."""
    from great_expectations.core.expectation_validation_result import (
        ExpectationSuiteValidationResult,
        ExpectationValidationResult,
    )

    results = [
        ExpectationValidationResult(
            success=found.success,
            expectation_config=found.expectation_config,
            result={name: _shown(value) for name, value in found.result.items() if name not in LEFT_OUT},
            exception_info=_shown(found.exception_info),
        )
        for found in result.results
    ]
    return ExpectationSuiteValidationResult(
        success=bool(result.success),
        results=results,
        suite_name=result.suite_name,
        statistics=result.statistics,
        meta={},
    )


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return excerpt(value).translate(NO_MARKUP)
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value[:SHOWN]] if isinstance(value, list | tuple) else value
