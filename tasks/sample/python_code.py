"""Python sources as they are, and the prose inside them: what a module's docstrings say, without its code."""

import ast
import gc
import warnings
from collections.abc import Iterator

from tasks.sample.distributions import InstalledFile, installed_files
from tasks.sample.sample import Sample, interleaved, read_text

MIN_DOCSTRINGS = 300  # characters; less than this is a label, no document
MIN_SHARE = 0.2  # of a file between triple quotes: parsing takes the time, so pass over files with little to say
MAX_SOURCE_BYTES = 50_000  # longer ones are mostly tables and tests of generated cases
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def python_files(seed: int) -> Iterator[InstalledFile]:
    """Every Python file, one of each package in turn."""
    files = [file for file in installed_files() if file.name.endswith(".py")]
    return interleaved(files, seed, lambda file: file.group, lambda file: file.id)


def sources(seed: int) -> Iterator[Sample]:
    """Whole source files."""
    for file in python_files(seed):
        text = read_text(file.path, MAX_SOURCE_BYTES)
        if text is not None:
            yield Sample(file.id, text, "python-source", file.url, kind="code")


def docstrings(seed: int) -> Iterator[Sample]:
    """One document a module: its own docstring and those of its classes and functions, each under its name."""
    for file in python_files(seed + 1):  # another order than the sources', so that few modules come in both forms
        text = read_text(file.path)
        if text is None or documented_share(text) < MIN_SHARE:
            continue
        tree = parse(text)
        prose = "" if tree is None else module_prose(tree, file.module)
        if len(prose) >= MIN_DOCSTRINGS:
            yield Sample(f"{file.id}#docstrings", prose, "docstrings", file.url, kind="prose")


def documented_share(text: str) -> float:
    """Roughly what part of a source stands between triple quotes."""
    return sum(map(len, text.split('"""')[1::2])) / max(len(text), 1)


def parse(text: str) -> ast.Module | None:
    """The module's syntax tree, or None where this Python cannot parse it (templates, Python 2, later syntax)."""
    collects = gc.isenabled()
    gc.disable()  # a tree is a great many objects, all of them in use: to look for garbage takes a third of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings are no news here
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        if collects:
            gc.enable()


def module_prose(tree: ast.Module, module: str) -> str:
    """Docstrings in the order of the file, each under the name it documents."""
    parts = []
    for node, name in _documented(tree, module):
        said = ast.get_docstring(node)
        if said and said.strip():
            parts.append(f"{name}\n{said.strip()}")
    return "\n\n".join(parts) if len(parts) > 1 or len("".join(parts)) >= MIN_DOCSTRINGS else ""


def _documented(node: Documented, name: str) -> Iterator[tuple[Documented, str]]:
    """A module or class and what it defines; functions inside functions are no one's documentation."""
    yield node, name
    if isinstance(node, ast.Module | ast.ClassDef):
        prefix = "" if isinstance(node, ast.Module) else f"{name}."
        for child in node.body:
            if isinstance(child, ast.ClassDef):
                yield from _documented(child, f"{prefix}{child.name}")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, f"{prefix}{signature(child)}"


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`name(arguments)` as it stands in the source, on one line."""
    return f"{node.name}({ast.unparse(node.args)})"
