"""Chinese that programs show: message catalogues, their English originals, and Chinese help texts."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from babel import Locale
from babel.messages.mofile import read_mo

from tasks.sample.distributions import installed_files
from tasks.sample.sample import Sample, interleaved, read_text, shuffled
from tasks.sample.system import share_folders

_CHINESE = re.compile(r"(?:^|[/._-])(zh[-_](?:CN|TW|HK|SG|Hans|Hant)[A-Za-z_]*)(?=[/.]|$)", re.IGNORECASE)
_TRADITIONAL = ("tw", "hk", "hant")
CHUNK_CHARACTERS = 2500  # messages of one catalogue that make one document; about 6 kB of UTF-8
_HELP_TEXTS = ("vim/*/tutor/tutor.zh_*.utf-8", "gnupg/help.zh_*.txt", "doc/**/*zh_CN*", "doc/**/*zh_TW*")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A program's messages in one Chinese script, in the file's order: (English original, Chinese)."""

    name: str
    language: str
    messages: tuple[tuple[str, str], ...]
    revised: str | None = None
    url: str | None = None

    @property
    def traditional(self) -> bool:
        return any(mark in self.language.lower() for mark in _TRADITIONAL)


def messages(seed: int) -> Iterator[Sample]:
    """Chinese messages of a catalogue, neighbouring ones together; one document of each catalogue in turn."""
    pieces = [piece for catalogue in catalogues() for piece in _documents(catalogue)]
    yield from interleaved(pieces, seed, lambda sample: sample.id.split("#")[0], lambda sample: sample.id)


def help_texts(seed: int) -> Iterator[Sample]:
    """Tutorials and help files written in Chinese."""
    files = {
        f"{path.relative_to(root).as_posix()}": path
        for root in share_folders()
        for pattern in _HELP_TEXTS
        for path in root.glob(pattern)
        if path.is_file() and not path.is_symlink() and path.suffix != ".mo"
    }
    for name in shuffled(files, seed, str):
        text = read_text(files[name])
        if text:
            yield Sample(f"share/{name.removesuffix('.gz')}", text, "docs-zh")


def names(seed: int) -> Iterator[Sample]:
    """Names of languages, countries, scripts and currencies in Chinese, from the Unicode locale data of Babel."""
    lists = {}
    for script in ("Hans", "Hant"):
        locale = Locale("zh", script=script)
        for kind in ("languages", "territories", "scripts", "currencies"):
            table = getattr(locale, kind)
            lists[f"cldr/zh-{script}/{kind}"] = "\n".join(f"{table[code]} ({code})" for code in sorted(table)) + "\n"
    for name in shuffled(lists, seed, str):
        yield Sample(name, lists[name], "names-zh")


@cache
def catalogues() -> tuple[Catalogue, ...]:
    """Every Chinese catalogue on the machine, in the order of names."""
    found = {catalogue.name: catalogue for catalogue in (*_system_catalogues(), *_package_catalogues())}
    return tuple(found[name] for name in sorted(found) if found[name].messages)


def _documents(catalogue: Catalogue) -> Iterator[Sample]:
    chunk: list[str] = []
    number = length = 0
    for index, (_, chinese) in enumerate(catalogue.messages):
        chunk.append(chinese.strip())
        length += len(chunk[-1])
        if length >= CHUNK_CHARACTERS or index + 1 == len(catalogue.messages):
            name, text = f"{catalogue.name}#{number:03d}", "\n".join(chunk) + "\n"
            yield Sample(name, text, "translations-zh", catalogue.url, catalogue.revised)
            chunk, number, length = [], number + 1, 0


def _system_catalogues() -> Iterator[Catalogue]:
    patterns = ("locale/zh*/LC_MESSAGES/*.mo", "vim/*/lang/zh_*.UTF-8/LC_MESSAGES/*.mo")
    for root in share_folders():
        for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
            language = path.parent.parent.name.split(".")[0]
            yield _gettext(path, f"gettext/{language}/{path.stem}", language, None)


def _package_catalogues() -> Iterator[Catalogue]:
    """Catalogues inside Python distributions: gettext's, and JSON trees of messages as web interfaces keep them."""
    files = {file.id: file for file in installed_files()}
    for file in files.values():
        found = _CHINESE.search(file.name)
        if found and file.name.endswith(".mo"):
            yield _gettext(file.path, file.id, found[1], file.url)
        elif found and file.name.endswith(".json"):
            original = files.get(file.id.replace(found[1], "en"))
            chinese, english = _leaves(file.path), _leaves(original.path) if original else {}
            pairs = tuple((english.get(key, ""), text) for key, text in chinese.items())
            yield Catalogue(file.id, found[1], pairs, None, file.url)


def _gettext(path: Path, name: str, language: str, url: str | None) -> Catalogue:
    try:
        catalogue = read_mo(BytesIO(path.read_bytes()))
    except (OSError, ValueError, LookupError):  # not readable, no catalogue, or an unknown character set
        return Catalogue(name, language, ())
    pairs = []
    for message in catalogue:
        original, chinese = (_first(message.id), _first(message.string))
        if original.strip() and chinese.strip() and "\0" not in chinese:
            pairs.append((original, chinese))
    header = dict(catalogue.mime_headers).get("PO-Revision-Date", "")
    revised = header[:10] if re.fullmatch(r"\d{4}-\d{2}-\d{2}", header[:10]) else None
    return Catalogue(name, language, tuple(pairs), revised, url)


def _first(forms: str | list[str] | tuple[str, ...] | None) -> str:
    """The singular of a message that has plural forms."""
    return forms if isinstance(forms, str) else next(iter(forms or ()), "")


def _leaves(path: Path) -> dict[str, str]:
    """Strings of a JSON tree by their dotted keys; nothing where the file is no JSON."""
    text = read_text(path)
    try:
        tree = json.loads(text) if text else {}
    except ValueError:
        return {}
    return dict(_walk(tree, ""))


def _walk(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from _walk(child, f"{key}.{name}")
    elif isinstance(node, str) and node.strip():
        yield key, node
