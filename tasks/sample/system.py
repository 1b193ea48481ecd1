"""Documentation that the operating system's packages bring. On a machine without any, these sources are empty."""

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

from tasks.sample.package_texts import is_licence
from tasks.sample.sample import Sample, interleaved, read_text, shuffled

_PACKAGE_DATABASE = Path("/var/lib/dpkg/status")
_SHARE_FOLDERS = ("/usr/share", "/usr/local/share", "/opt/homebrew/share")
_NO_TEXT = re.compile(r"\.(html?|xml|css|js|svg|png|gif|jpe?g|pdf|ps|sgml|dvi|info|fig|eps|ico|css|json|ya?ml)(\.gz)?$")
_CODE = re.compile(r"\.(c|h|cc|cpp|pl|pm|py|sh|awk|tcl|rb|el|lua|cocci|perl|java|go|mk|m4|vim)(\.gz)?$|(^|/)Makefile")


@cache
def share_folders() -> tuple[Path, ...]:
    """Where this system keeps shared data (`doc`, `man`, `locale`): the system's, local, Homebrew's, Python's."""
    roots = [Path(name) for name in (*_SHARE_FOLDERS, f"{sys.base_prefix}/share")]
    return tuple(dict.fromkeys(root.resolve() for root in roots if root.is_dir()))


@cache
def system_packages() -> dict[str, dict[str, str]]:
    """Fields of every installed Debian package by its name; empty where there is no such database."""
    try:
        text = _PACKAGE_DATABASE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    stanzas = (_fields(stanza) for stanza in text.split("\n\n") if stanza.strip())
    return {fields["Package"]: fields for fields in stanzas if "Package" in fields}


def documents(seed: int) -> Iterator[Sample]:
    """READMEs, changelogs, news and other text files of system packages, one of each package in turn."""
    yield from _texts(seed, "debian-doc", lambda name: not is_licence(name))


def licences(seed: int) -> Iterator[Sample]:
    """Copyright files of system packages."""
    yield from _texts(seed, "debian-licences", is_licence)


def descriptions(seed: int) -> Iterator[Sample]:
    """What each system package says of itself."""
    packages = system_packages()
    for name in shuffled(packages, seed, str):
        text = description(packages[name])
        if text:
            yield Sample(f"debian/{name}#description", text, "debian-descriptions", _url(name), kind="prose")


def description(fields: dict[str, str]) -> str:
    """A package's description as plain text: summary, then paragraphs; Debian writes an empty line as ` .`."""
    summary, _, body = fields.get("Description", "").partition("\n")
    lines = ["" if line.strip() == "." else line.removeprefix(" ") for line in body.splitlines()]
    return f"{summary}\n\n" + "\n".join(lines) + "\n" if body.strip() else ""


def _texts(seed: int, source: str, wanted: Callable[[str], bool]) -> Iterator[Sample]:
    files = [(package, name, path) for package, name, path in _doc_files() if wanted(name)]
    for package, name, path in interleaved(files, seed, lambda file: file[0], lambda file: f"{file[0]}/{file[1]}"):
        text = read_text(path)
        if text is not None:
            kind = "code" if _CODE.search(name) else None
            yield Sample(f"debian/{package}/{name.removesuffix('.gz')}", text, source, _url(package), kind=kind)


@cache
def _doc_files() -> tuple[tuple[str, str, Path], ...]:
    return tuple(_find())


def _find() -> Iterator[tuple[str, str, Path]]:
    """(package, file inside its folder, path) of everything under `doc` that may be text."""
    seen = set()
    for root in share_folders():
        for path in sorted((root / "doc").rglob("*")):
            parts = path.relative_to(root / "doc").parts
            if len(parts) > 1 and not _NO_TEXT.search(path.name) and path.is_file() and not path.is_symlink():
                package, name = parts[0], "/".join(parts[1:])
                if (package, name.removesuffix(".gz")) not in seen:
                    seen.add((package, name.removesuffix(".gz")))
                    yield package, name, path


def _url(package: str) -> str | None:
    """Package URL of a Debian package; None for a folder that is none."""
    fields = system_packages().get(package)
    return f"pkg:deb/debian/{package}@{quote(fields.get('Version', ''), safe='')}" if fields else None


def _fields(stanza: str) -> dict[str, str]:
    """Fields of one stanza; a line that begins with a blank continues the field before it."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line[:1] in (" ", "\t"):
            fields[name] = f"{fields.get(name, '')}\n{line}"
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields
