from typing import Any

import pytest

from tasks.sample import distributions, man_pages, system, translations
from tasks.sample.harvest import harvest_corpus
from tasks.sample.instructions import harvest_instructions


@pytest.fixture(scope="session")
def size() -> dict[str, Any]:
    """Arguments of the small harvest that the tests share."""
    return {"min_documents": 300, "min_bytes": 2_000_000, "snapshot": "2026-01-31"}


@pytest.fixture(scope="session")
def landing(tmp_path_factory):
    return tmp_path_factory.mktemp("landing")


@pytest.fixture(scope="session")
def harvested(landing, size):
    """A landing zone with a small harvest of this machine, and what the harvest said of it."""
    return landing, harvest_corpus(str(landing), **size)


@pytest.fixture(scope="session")
def instructed(landing):
    """The same landing zone with instruction records, and what the harvest said of them."""
    return landing, harvest_instructions(str(landing), min_records=150, max_records=300)


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """A machine on which nothing but Python and the installed distributions has documentation."""

    def forget():
        for cached in (system.system_packages, system._doc_files, man_pages._files, translations.catalogues):
            cached.cache_clear()

    forget()
    for module in (system, man_pages, translations):
        monkeypatch.setattr(module, "share_folders", lambda: ())
    monkeypatch.setattr(system, "_PACKAGE_DATABASE", tmp_path / "absent")
    yield distributions
    forget()
