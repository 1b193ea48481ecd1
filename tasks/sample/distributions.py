"""Files of the installed Python distributions and of the standard library, by names free of machine paths."""

import csv
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

# What an installer adds beside the files that a wheel brought: differs from machine to machine.
_INSTALLED_LATER = (".pyc", "/INSTALLER", "/REQUESTED", "/RECORD", "/direct_url.json")


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution: `description` is its long description as the index shows it."""

    name: str
    version: str
    summary: str
    description: str

    @property
    def url(self) -> str:
        """Package URL, e.g. `pkg:pypi/click@8.3.1`."""
        return f"pkg:pypi/{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class InstalledFile:
    """A file of a distribution or of the standard library. `name` is its place inside the package, in posix form."""

    owner: str
    version: str
    name: str
    root: str
    url: str

    @property
    def path(self) -> Path:
        return Path(self.root, self.name)

    @property
    def id(self) -> str:
        return f"{self.owner}-{self.version}/{self.name}"

    @property
    def module(self) -> str:
        """Dotted module name of a Python file."""
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def group(self) -> str:
        """What a balanced sample takes turns over: distributions, and the standard library's packages."""
        if self.owner != "python":
            return self.owner
        head, slash, _ = self.name.partition("/")
        return f"python/{head}" if slash else "python"


@cache
def packages() -> tuple[Package, ...]:
    """Every installed distribution, by name."""
    return tuple(package for package, _ in _installed())


@cache
def installed_files() -> tuple[InstalledFile, ...]:
    """Every file that installed distributions record as theirs, then the standard library's Python files, in order."""
    recorded = (file for _, files in _installed() for file in files)
    return tuple(sorted([*recorded, *_standard_library()], key=lambda file: file.id))


@cache
def _installed() -> tuple[tuple[Package, tuple[InstalledFile, ...]], ...]:
    found: dict[str, tuple[Package, tuple[InstalledFile, ...]]] = {}
    for distribution in distributions():
        metadata: Any = distribution.metadata  # a Message; a missing key is None by get, on every Python
        name = (metadata.get("Name") or "").lower().replace("_", "-")
        if not name or name in found:  # the first on the path is the one that Python imports
            continue
        description = metadata.get("Description") or metadata.get_payload()
        package = Package(name, str(distribution.version), metadata.get("Summary") or "", str(description or ""))
        root = str(distribution.locate_file(""))
        rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
        names = sorted({row[0] for row in rows if row and _is_content(row[0])})
        files = (InstalledFile(name, package.version, inside, root, package.url) for inside in names)
        found[name] = package, tuple(files)
    return tuple(found[name] for name in sorted(found))


def _is_content(name: str) -> bool:
    return not name.startswith(("..", "/")) and not name.endswith(_INSTALLED_LATER)


def _standard_library() -> Iterator[InstalledFile]:
    root = Path(sysconfig.get_path("stdlib"))
    version = sysconfig.get_python_version()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("site-packages/", "dist-packages/")):
            yield InstalledFile("python", version, name, str(root), f"pkg:generic/python@{version}")
