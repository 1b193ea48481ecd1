"""Manual pages of the system, as plain text: English, Chinese, and a few in other languages."""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from tasks.sample.roff import heading, to_text
from tasks.sample.sample import Sample, interleaved, read_text
from tasks.sample.system import share_folders

_PAGE = re.compile(r"\.[1-9][a-z0-9]*(\.gz)?$")
_DATE_FORMS = ("%Y-%m-%d", "%Y/%m/%d", "%d %B %Y", "%B %d, %Y", "%d %b %Y")
MIN_CHARACTERS = 200  # an alias page or a mere pointer to another


def english(seed: int) -> Iterator[Sample]:
    """Pages without a language, one of each section in turn."""
    yield from _pages(seed, "man", lambda language: language == "en")


def chinese(seed: int) -> Iterator[Sample]:
    """Pages in simplified and traditional Chinese."""
    yield from _pages(seed, "man-zh", lambda language: language.startswith("zh"))


def foreign(seed: int) -> Iterator[Sample]:
    """Pages in languages that have no rules of their own, one of each language in turn."""
    yield from _pages(seed, "man-other", lambda language: language != "en" and not language.startswith("zh"))


def _pages(seed: int, source: str, wanted: Callable[[str], bool]) -> Iterator[Sample]:
    files = [(language, name, path) for language, name, path in _files() if wanted(language)]
    for language, name, path in interleaved(files, seed, _group, lambda file: f"{file[0]}/{file[1]}"):
        page = read_text(path)
        text = to_text(page) if page else ""
        if page and len(text) >= MIN_CHARACTERS:
            yield Sample(f"man/{language}/{name}", text, source, timestamp=_date(page), kind="prose")


def _group(file: tuple[str, str, Path]) -> str:
    language, name, _ = file
    return language if language != "en" else name.split("/")[0]


@cache
def _files() -> tuple[tuple[str, str, Path], ...]:
    return tuple(_find())


def _find() -> Iterator[tuple[str, str, Path]]:
    """(language, section and name, path) of every page; of one page in two folders the first is taken."""
    seen = set()
    for root in share_folders():
        for path in sorted((root / "man").rglob("*")):
            parts = path.relative_to(root / "man").parts
            if _PAGE.search(path.name) and path.is_file() and not path.is_symlink() and parts[-2:-1]:
                language = "en" if len(parts) == 2 else parts[0]
                name = f"{parts[-2]}/{path.name.removesuffix('.gz')}"
                if (language, name) not in seen:
                    seen.add((language, name))
                    yield language, name, path


def _date(page: str) -> str | None:
    """The day that the title line states, as YYYY-MM-DD, where it is one without doubt."""
    title = heading(page)
    for form in _DATE_FORMS if len(title) > 2 else ():
        try:
            return datetime.strptime(title[2], form).replace(tzinfo=UTC).date().isoformat()
        except ValueError:
            continue
    return None
