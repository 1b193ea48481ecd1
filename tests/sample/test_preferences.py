"""Preference records made from docstrings: real against worse, said to be synthetic, apart from what is tuned on."""

from collections import Counter

import pytest

from tasks.corpus.shards import Row, read_shard, write_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.sample.preferences import FILE, WORSE, harvest_preferences


@pytest.fixture(scope="module")
def preferred(tmp_path_factory):
    """A landing zone with preference records alone, and what the harvest said of them."""
    into = tmp_path_factory.mktemp("landing")
    return into, harvest_preferences(str(into), min_records=80, max_records=120)


@pytest.fixture(scope="module")
def records(preferred):
    into, result = preferred
    items = list(read_shard(open_store(str(into)), f"preferences/{FILE}"))
    assert len(items) == result["records"]
    return [item.record for item in items if isinstance(item, Row)]


def test_every_record_says_that_no_person_judged_it(records):
    assert all(record["synthetic"] is True and "annotator" not in record for record in records)
    assert all(record["ranks"] == [1, 2] and len(record["responses"]) == 2 for record in records)
    assert len({record["id"] for record in records}) == len(records)


def test_the_worse_answer_is_worse_in_the_way_it_says(records):
    kinds: Counter[str] = Counter()
    for record in records:
        (good, bad), kind = record["responses"], record["id"].rsplit("#", 1)[1]
        kinds[kind] += 1
        words, others = good.split(), bad.split()
        assert words != others
        if kind == "shuffled":
            assert sorted(words) == sorted(others)
        elif kind == "repeated":
            assert len(others) == len(words) and set(others) <= set(words[:3])
        elif kind == "cut":
            assert others == words[: len(others)] and len(others) <= max(2, len(words) // 2)
    assert set(kinds) == set(WORSE) and min(kinds.values()) > len(records) // 6


def test_functions_that_instruction_records_explain_are_passed_over(records, tmp_path):
    told = {record["id"].rsplit("#", 1)[0] for record in records[:40]}
    write_shard(tmp_path / "instructions" / "docstrings.jsonl.zst", [{"id": name} for name in sorted(told)])
    harvest_preferences(str(tmp_path), min_records=80, max_records=120)
    items = read_shard(open_store(str(tmp_path)), f"preferences/{FILE}")
    assert not told & {item.record["id"].rsplit("#", 1)[0] for item in items if isinstance(item, Row)}


def test_a_second_call_reuses_and_the_same_machine_gives_the_same_bytes(preferred, tmp_path):
    into, result = preferred
    again = harvest_preferences(str(into), min_records=80, max_records=120)
    assert again["reused"] and again["files"] == result["files"]
    assert not harvest_preferences(str(tmp_path), min_records=80, max_records=120)["reused"]
    assert (tmp_path / "preferences" / FILE).read_bytes() == (into / "preferences" / FILE).read_bytes()


def test_too_few_records_are_an_error(tmp_path):
    with pytest.raises(DataError, match="preference records"):
        harvest_preferences(str(tmp_path), min_records=9, max_records=8)
