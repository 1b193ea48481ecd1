"""HTML pages from templates: everything is escaped, and a name that a template misspells is an error."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def page_template(file: Path, **filters: Callable[..., Any]) -> "Template":
    """The Jinja template in a file, with filters of its own by name. Imported when it is first needed."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(file.name)
