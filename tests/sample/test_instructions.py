"""Instruction records made from the functions, descriptions and catalogues of the machine that runs the tests."""

import ast
from collections import Counter

import pytest

from tasks.corpus.shards import Row, read_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.sample.conversation import Conversation, Unseen, is_sentence
from tasks.sample.instructions import harvest_instructions
from tasks.sample.sample import is_chinese

CATEGORIES = {"code", "explanation", "dialogue", "general", "translation"}


@pytest.fixture
def records(instructed):
    into, result = instructed
    store = open_store(str(into))
    items = [item for name in sorted(result["files"]) for item in read_shard(store, name)]
    assert len(items) == result["records"]
    return [item.record for item in items if isinstance(item, Row)]


def test_files_and_reuse(instructed, records):
    into, result = instructed
    assert not result["reused"] and 150 <= result["records"] <= 300 and len(records) == result["records"]
    assert result["categories"] == Counter(record["category"] for record in records)
    assert all(name.startswith("instructions/") and name.endswith(".jsonl.zst") for name in result["files"])
    assert harvest_instructions(str(into), min_records=150, max_records=300)["reused"]


def of(records, *categories):
    return [record for record in records if record["category"] in categories]


def code_of(record):
    answer = record["messages"][-1]["content"]
    assert answer.startswith("```python\n") and answer.endswith("\n```")
    return answer.removeprefix("```python\n").removesuffix("\n```")


def test_form_of_the_records(records):
    assert {record["category"] for record in records} == CATEGORIES
    assert len({record["id"] for record in records}) == len(records)
    for record in records:
        assert set(record) == {"id", "messages", "source", "category"}
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) and roles
        assert all(message["content"].strip() for message in record["messages"])
        assert not record["id"].startswith("/") and "site-packages" not in record["id"]


def test_no_question_and_no_answer_twice(records):
    for role in ("user", "assistant"):
        texts = Counter(
            " ".join(message["content"].split()).casefold()
            for record in records
            for message in record["messages"]
            if message["role"] == role
        )
        assert texts.most_common(1)[0][1] == 1


def test_written_code_is_one_function_of_bounded_length_without_its_docstring(records):
    for record in of(records, "code", "dialogue"):
        code = code_of(record)
        (function,) = ast.parse(code).body
        assert isinstance(function, ast.FunctionDef)
        assert ast.get_docstring(function) is None or function.name in code
        assert 3 <= len(code.splitlines()) <= 40
        assert f"`{function.name}(" in record["messages"][-2]["content"]


def test_explanations_begin_with_a_sentence_and_are_not_in_the_question(records):
    for record in of(records, "explanation"):
        question, answer = (message["content"] for message in record["messages"])
        assert is_sentence(" ".join(answer.split("\n\n")[0].split()))
        assert answer not in question


def test_dialogues_have_two_turns(records):
    assert {len(record["messages"]) for record in of(records, "dialogue")} == {4}


def test_no_function_is_asked_for_in_one_record_and_explained_in_another(records):
    written = {record["id"] for record in of(records, "code", "dialogue")}
    assert not written & {record["id"] for record in of(records, "explanation")}


def test_translations_are_chinese_on_one_side(records):
    # Airflow's interface is translated, so there are some on every machine that has requirements.txt installed.
    found = of(records, "translation")
    assert len(found) >= 30
    sides: Counter[str] = Counter()
    for record in found:
        question, answer = (message["content"] for message in record["messages"])
        sides["to Chinese" if is_chinese(answer, 0.5) else "to English"] += 1
        assert is_chinese(answer, 0.5) or is_chinese(question.split("\n\n", 1)[1], 0.5)
    assert sides["to Chinese"] > sides["to English"] > 0


def test_installed_distributions_alone_are_enough(bare_machine, tmp_path):
    result = harvest_instructions(str(tmp_path), min_records=200, max_records=300)
    assert set(result["categories"]) == CATEGORIES


def test_too_few_records_are_an_error(bare_machine, tmp_path):
    with pytest.raises(DataError, match="instruction records"):
        harvest_instructions(str(tmp_path), min_records=60, max_records=50)


def test_unseen_tells_repeated_questions_and_answers():
    unseen = Unseen()

    def talk(question, answer):
        return Conversation("a", "general", "test", ((question, answer),))

    assert unseen(talk("What is it?", "A thing."))
    assert not unseen(talk("what  is it?", "Another thing."))
    assert not unseen(talk("And that?", "a THING."))
    assert unseen(talk("And that?", "Something else."))
