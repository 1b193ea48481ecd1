"""Texts that come with installed distributions: long descriptions, documentation files, licences."""

import re
from collections.abc import Callable, Iterator

from tasks.sample.distributions import InstalledFile, installed_files, packages
from tasks.sample.sample import Sample, interleaved, read_text, shuffled

_DOCUMENT = re.compile(r"\.(md|rst|txt|markdown)$", re.IGNORECASE)
_LICENCE = re.compile(r"(^|/)(un)?(licen[cs]es?|copying|copyright|notice|authors)([-._/][^/]*)?$", re.IGNORECASE)


def descriptions(seed: int) -> Iterator[Sample]:
    """Long descriptions as the package index shows them."""
    for package in shuffled(packages(), seed, lambda package: package.name):
        if package.description.strip():
            name = f"{package.name}-{package.version}#description"
            yield Sample(name, package.description, "package-descriptions", package.url)


def documents(seed: int) -> Iterator[Sample]:
    """Markdown, reStructuredText and plain text files, word lists and test data among them."""
    yield from _texts(seed, "python-docs", lambda name: bool(_DOCUMENT.search(name)) and not is_licence(name))


def licences(seed: int) -> Iterator[Sample]:
    """Licence, notice and author files: the same few texts over and over, as they are in the world."""
    yield from _texts(seed, "licences", is_licence)


def is_licence(name: str) -> bool:
    """Whether a file's name says that it is a licence, and its suffix does not say that it is code."""
    if name.endswith((".py", ".pyi", ".json", ".html", ".js", ".h", ".map", ".so")):
        return False
    return bool(_LICENCE.search(name)) or ".dist-info/licenses/" in name


def _texts(seed: int, source: str, wanted: Callable[[str], bool]) -> Iterator[Sample]:
    files = [file for file in installed_files() if _is_document(file) and wanted(file.name)]
    for file in interleaved(files, seed, lambda file: file.group, lambda file: file.id):
        text = read_text(file.path)
        if text is not None:
            yield Sample(file.id, text, source, file.url)


def _is_document(file: InstalledFile) -> bool:
    """Of an installer's own folder only the licences are texts; the rest is lists of names."""
    return ".dist-info/" not in file.name or is_licence(file.name)
