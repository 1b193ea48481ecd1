"""The import arrows of the architecture run one way: read from the source, so that a wrong one names its line."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BASE = {"tasks.errors", "tasks.pages", "tasks.parent_death", "tasks.settings"}
# Area → areas of `tasks` that it may import besides itself and BASE.
ALLOWED = {
    "corpus": set(),
    "curation": {"corpus"},
    "tokens": {"corpus"},
    "gates": {"corpus"},
    "sample": {"corpus"},
    "training": {"corpus", "tokens"},
    "evaluation": {"corpus", "tokens", "training"},
    "cascade": {"corpus", "tokens", "training", "evaluation", "curation", "gates"},
    "release": {"corpus", "tokens", "training", "evaluation", "curation", "gates"},
}


def imports(path: Path) -> list[tuple[int, str]]:
    """Line and full dotted name of every import, those inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def wrong_in_tasks(path: Path) -> list[str]:
    area = path.relative_to(ROOT / "tasks").parts[0]
    wrong = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] in ("airflow", "plugins", "dags"):
            wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
        if parts[0] != "tasks" or area not in ALLOWED or ".".join(parts[:2]) in BASE:
            continue
        if parts[1] not in ALLOWED[area] | {area}:
            wrong.append(f"{path.relative_to(ROOT)}:{line} ({area}) imports {name}")
    return wrong


def test_library_arrows() -> None:
    files = sorted((ROOT / "tasks").rglob("*.py"))
    assert len(files) > 20
    assert [problem for path in files for problem in wrong_in_tasks(path)] == []


def test_every_area_has_its_arrows() -> None:
    areas = {path.parent.name for path in (ROOT / "tasks").glob("*/__init__.py")}
    assert areas <= set(ALLOWED)


def test_plugins_know_nothing_of_dags() -> None:
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for line, name in imports(path):
            assert name.split(".")[0] != "dags", f"{path.relative_to(ROOT)}:{line} imports {name}"


def test_a_wrong_arrow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks" / "corpus").mkdir(parents=True)
    bad = tmp_path / "tasks" / "corpus" / "bad.py"
    bad.write_text("def f():\n    from tasks.curation import steps\n    import airflow\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert len(wrong_in_tasks(bad)) == 2
