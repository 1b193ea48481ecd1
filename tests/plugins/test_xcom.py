"""Large XCom values in the store, on a folder and on S3."""

from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.xcom import LARGE, REFERENCE, StoreXCom, stored
from tasks.corpus.storage import open_store
from tasks.errors import AthanorError, DataError

Row = namedtuple("Row", "value")
RUN = "manual__2026-01-15T02:00:00+00:00"
AT: dict[str, Any] = {"key": "return_value", "dag_id": "curate_corpus", "run_id": RUN, "task_id": "a.b"}
GROUPS = [f"group-{number:03}" for number in range(256)]
KEY = st.text("aé\U0001f600.$", max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
)


@pytest.fixture(params=["a folder", "S3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> str:
    place = str(tmp_path / "store") if request.param == "a folder" else request.getfixturevalue("bucket")
    monkeypatch.setenv("ATHANOR_STORE", place)
    return place


def objects(store: str) -> list[str]:
    return [entry.key for entry in open_store(f"{store}/xcom").list()]


def test_a_large_value_lies_in_the_store_once_and_goes_with_its_row(store: str) -> None:
    kept = StoreXCom.serialize_value(GROUPS, **AT)
    assert list(kept) == [REFERENCE] and "manual__" in kept[REFERENCE]
    assert StoreXCom.serialize_value(GROUPS, **AT) == kept, "a second try writes the same object"
    assert len(objects(store)) == 1
    assert StoreXCom.deserialize_value(Row(kept)) == stored(kept) == GROUPS
    StoreXCom.purge(Row(kept))
    assert objects(store) == []
    with pytest.raises(AthanorError, match="xcom"):
        stored(kept)


def test_equal_values_of_two_squares_are_two_objects(store: str) -> None:
    one, other = (StoreXCom.serialize_value(GROUPS, **AT, map_index=index) for index in (0, 1))
    StoreXCom.purge(Row(one))
    assert StoreXCom.deserialize_value(Row(other)) == GROUPS


def test_a_small_value_stays_in_the_database(store: str) -> None:
    kept = StoreXCom.serialize_value({"snapshot": "2026-01-15", "kept": 3}, **AT)
    assert StoreXCom.deserialize_value(Row(kept)) == {"snapshot": "2026-01-15", "kept": 3}
    assert objects(store) == []


@pytest.mark.parametrize("name", ["../registry/tiny.json", "/etc/passwd", "a/../../b", 7])
def test_a_reference_leads_nowhere_else(store: str, name: object) -> None:
    with pytest.raises(DataError, match="no name below"):
        stored({REFERENCE: name})


@settings(max_examples=25, deadline=None)
@given(value=JSON, padding=st.sampled_from(["", "x" * LARGE]))
def test_what_comes_out_is_what_went_in(value: Any, padding: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATHANOR_STORE", str(tmp_path_factory.getbasetemp() / "xcom-store"))
        whole = [value, padding]
        assert StoreXCom.deserialize_value(Row(StoreXCom.serialize_value(whole, **AT))) == whole
