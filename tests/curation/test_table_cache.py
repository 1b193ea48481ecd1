"""Tables are built once, and a damaged cache is built anew."""

from pathlib import Path

import numpy as np
import pytest

from tasks.curation.text.table_cache import Tables, cached_tables


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


def tables(built: list[int], content: bytes = b"a") -> Tables:
    def build() -> Tables:
        built.append(1)
        return {"numbers": np.arange(1000), "one": np.array(1.5)}

    return cached_tables("test", content, build)


def test_built_once_for_the_same_content(built: list[int]) -> None:
    first, second = tables(built), tables(built)
    assert len(built) == 1
    assert np.array_equal(first["numbers"], second["numbers"]) and float(second["one"]) == 1.5
    tables(built, b"b")
    assert len(built) == 2


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 100])
def test_a_damaged_cache_is_built_anew(built: list[int], tmp_path: Path, damage) -> None:
    tables(built)
    [path] = (tmp_path / "athanor").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert tables(built)["numbers"][-1] == 999
    assert len(built) == 2
    tables(built)
    assert len(built) == 2  # and kept again
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_bit_that_flipped_is_seen(built: list[int], tmp_path: Path) -> None:
    tables(built)
    [path] = (tmp_path / "athanor").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert np.array_equal(tables(built)["numbers"], np.arange(1000))


def test_a_folder_that_cannot_be_written_only_costs_time(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert tables(built)["numbers"][1] == 1
