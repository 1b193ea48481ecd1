"""Conversations about Python code, from real functions and what their docstrings say of them."""

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.sample.conversation import Conversation, first_paragraph, is_sentence
from tasks.sample.distributions import InstalledFile
from tasks.sample.python_code import MAX_SOURCE_BYTES, documented_share, parse, python_files, signature
from tasks.sample.sample import rank, read_text

MAX_LINES = 40  # of a function, its docstring apart
MIN_LINES = 3
MAX_DOCSTRING = 900  # characters
MIN_SHARE, MAX_SHARE = 0.1, 0.6  # of a file between triple quotes: both code and words about it
PER_FILE = 5  # so that no single module sets the tone
_NOT_FOR_USE = re.compile(r"(^|[/_])(tests?|testing|conftest|_vendor|vendored|examples?)([/_.]|$)")
_PLAIN_DECORATORS = {"staticmethod", "classmethod", "property"}

_WRITE = (
    "Write a Python function `{signature}` that does the following.\n\n{doc}",
    "Implement this Python function.\n\n`{signature}`\n\n{doc}",
    "I need a function `{signature}` in Python:\n\n{doc}",
)
_EXPLAIN = (
    "What does this function do?\n\n{code}",
    "Explain this Python function.\n\n{code}",
    "Write a docstring for this function.\n\n{code}",
)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function as a question or an answer: its source without the docstring, dedented, and the docstring."""

    name: str
    signature: str
    code: str
    doc: str

    @property
    def fenced(self) -> str:
        return f"```python\n{self.code}\n```"


def conversations(seed: int) -> Iterator[Conversation]:
    """Code to write, code to explain, and two-turn talks about a class and one of its methods.

    Each function appears once: what is a question in one record is never the answer in another.
    """
    for file in python_files(seed + 2):
        if _NOT_FOR_USE.search(file.name):
            continue
        text = read_text(file.path, MAX_SOURCE_BYTES)
        if text is None or not MIN_SHARE <= documented_share(text) <= MAX_SHARE:
            continue
        tree = parse(text)
        if tree is not None:
            yield from _of_module(tree, text.splitlines(), file, seed)


def _of_module(tree: ast.Module, lines: list[str], file: InstalledFile, seed: int) -> Iterator[Conversation]:
    made = 0
    for node in tree.body:
        found: Iterator[Conversation] = iter(())
        if isinstance(node, ast.ClassDef):
            found = _of_class(node, lines, file, seed)
        elif isinstance(node, ast.FunctionDef):
            function = _function(node, lines, node.name)
            found = iter([_single(function, file, seed)] if function else [])
        for conversation in found:
            yield conversation
            made += 1
            if made == PER_FILE:
                return


def _of_class(node: ast.ClassDef, lines: list[str], file: InstalledFile, seed: int) -> Iterator[Conversation]:
    purpose = first_paragraph(ast.get_docstring(node) or "")
    methods = [child for child in node.body if isinstance(child, ast.FunctionDef) and not child.name.startswith("__")]
    functions = [made for child in methods if (made := _function(child, lines, f"{node.name}.{child.name}"))]
    if functions and is_sentence(purpose) and len(purpose) <= MAX_DOCSTRING:
        method = functions.pop(0)
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        head = f"class {node.name}({bases})" if bases else f"class {node.name}"
        yield Conversation(
            f"{file.id}#{method.name}",
            "dialogue",
            "docstrings",
            (
                (f"What is `{head}` in `{file.module}` for?", purpose),
                (f"Show me its method `{method.signature}`. {first_paragraph(method.doc)}", method.fenced),
            ),
        )
    for function in functions:
        yield _single(function, file, seed)


def _single(function: _Function, file: InstalledFile, seed: int) -> Conversation:
    """One question and answer; whether to write or to explain, and in which words, is drawn from the code itself."""
    draw = rank(seed, function.code)
    name = f"{file.id}#{function.name}"
    if draw[0] % 2:
        question = _WRITE[draw[1] % len(_WRITE)].format(signature=function.signature, doc=function.doc)
        return Conversation(name, "code", "docstrings", ((question, function.fenced),))
    question = _EXPLAIN[draw[1] % len(_EXPLAIN)].format(code=function.fenced)
    return Conversation(name, "explanation", "docstrings", ((question, function.doc),))


def _function(node: ast.FunctionDef, lines: list[str], name: str) -> _Function | None:
    """The function as conversation material, or None when it is too long, too short, or hardly documented."""
    doc = ast.get_docstring(node) or ""
    first = node.body[0]
    if len(doc) > MAX_DOCSTRING or not is_sentence(first_paragraph(doc)) or len(node.body) < 2:
        return None
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if not decorators <= _PLAIN_DECORATORS or first.lineno == node.lineno or first.end_lineno is None:
        return None
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    body = lines[start - 1 : first.lineno - 1] + lines[first.end_lineno : node.end_lineno]
    code = textwrap.dedent("\n".join(line.rstrip() for line in body)).strip("\n")
    if not MIN_LINES <= len(body) <= MAX_LINES or parse(code) is None:
        return None
    return _Function(name, signature(node), code, doc.strip())
