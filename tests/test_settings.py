"""Configuration: order of sources, and errors that name the nearest key."""

from pathlib import Path

import pytest

from tasks.curation.config import load_curation
from tasks.errors import ConfigError
from tasks.settings import settings


def test_order_of_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ATHANOR_WORKERS", "ATHANOR_STORE", "ATHANOR_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert settings().workers == 2
    (tmp_path / "athanor.yaml").write_text("workers: 3\n")
    assert settings().workers == 3
    monkeypatch.setenv("ATHANOR_WORKERS", "4")
    assert settings().workers == 4
    assert settings(workers=5).workers == 5
    assert settings(home=tmp_path).store == str(tmp_path / "store")


def test_unknown_key_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "athanor.yaml").write_text("worker: 3\n")
    with pytest.raises(ConfigError, match=r"'worker'; did you mean 'workers'"):
        settings()


def test_unknown_variable_and_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATHANOR_WORKER", "3")
    with pytest.raises(ConfigError, match="did you mean ATHANOR_WORKERS"):
        settings()
    monkeypatch.delenv("ATHANOR_WORKER")
    for broken in ("a: [", "- 1"):
        (tmp_path / "athanor.yaml").write_text(broken)
        with pytest.raises(ConfigError, match=r"athanor\.yaml"):
            settings()


@pytest.mark.parametrize(
    "text, message",
    [
        ("schema_version: 1\nrules: {}\ndedup: {treshold: 0.7}\n", "did you mean 'threshold'"),
        ("schema_version: 1\nrules: {en: {bounds: {a: {signal: word, min: 1}}}}\n", "did you mean 'words'"),
        ("schema_version: 1\nrules: {en: {bounds: {a: {signal: words}}}}\n", "needs 'min', 'max' or both"),
        ("schema_version: 2\nrules: {}\n", "schema_version"),
        ("schema_version: 1\nrules: {en: {bounds: {a: {signal: words, min: .inf}}}}\n", "finite"),
        ("schema_version: 1\nrules: {en: {bounds: {a: {signal: words, min: 9, max: 1}}}}\n", "no document could pass"),
        ("schema_version: 1\nrules: {en: {cut_lines: {a: [THE]}}}\n", "must be lower case"),
        ("schema_version: 1\nrules: {}\ndedup: {threshold: 0.9999}\n", "no bands fit"),
        ("- a list\n", "expected a mapping"),
        ("a: [\n", "not valid YAML"),
    ],
)
def test_curation_configuration_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_curation(str(path))


def test_unknown_configuration_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'default'"):
        load_curation("defualt")
