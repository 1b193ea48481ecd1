"""Records of other tools: real samples of every form, every row accounted for, every refusal with its reason."""

from collections import Counter
from pathlib import Path

import orjson
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tasks.corpus.shards import Row, read_shard, write_shard
from tasks.corpus.storage import open_store
from tasks.errors import DataError
from tasks.gates.gate import run_gate
from tasks.training.cli import register
from tasks.training.conversations import Unusable, checked, read_conversation
from tasks.training.importing import import_instructions

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "dev" / "sft"

U, A, S = "user", "assistant", "system"


def messages(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, [(U, "Add.\n\n1 2"), (A, "3")]),
        ({"instruction": "Hi", "input": "", "output": "Hello"}, [(U, "Hi"), (A, "Hello")]),
        (
            {"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "s"},
            [(S, "s"), (U, "a"), (A, "b"), (U, "c"), (A, "d")],
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            [(S, "s"), (U, "q"), (A, "a")],
        ),
        (
            {"messages": [{"role": "developer", "content": "s"}, *messages((U, "q"), (A, "a"))]},
            [(S, "s"), (U, "q"), (A, "a")],
        ),
        (
            {"messages": [{"role": U, "content": [{"type": "text", "text": "q"}]}, *messages((A, "a"))]},
            [(U, "q"), (A, "a")],
        ),
        ({"question": "q", "answer": "a"}, [(U, "q"), (A, "a")]),
    ],
)
def test_forms(record, expected):
    assert read_conversation(record) == messages(*expected)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "only text"}, "unknown_form"),
        ({"instruction": "x"}, "unknown_form"),
        ({"messages": []}, "unknown_form"),
        ({"messages": messages((U, "q"))}, "no_answer"),
        ({"messages": messages((U, "q"), (U, "q"), (A, "a"))}, "turns"),
        ({"messages": messages((A, "a"), (U, "q"), (A, "a"))}, "turns"),
        ({"messages": messages((U, "q"), (S, "s"), (U, "q"), (A, "a"))}, "turns"),
        ({"messages": messages((U, " \n"), (A, "a"))}, "empty_message"),
        ({"messages": messages((U, "q\0"), (A, "a"))}, "nul_character"),
        ({"messages": messages((U, "\udbc0"), (A, "a"))}, "damaged_text"),
        ({"messages": messages((U, "q"), ("robot", "a"))}, "unknown_role"),
        ({"messages": [{"role": A, "content": None, "tool_calls": [{}]}]}, "tool_use"),
        ({"messages": [{"role": U, "content": [{"type": "image_url"}]}]}, "content_part"),
        ({"conversations": [{"from": "human", "value": 3}]}, "not_text"),
        ({"conversations": [{"from": "observation", "value": "x"}]}, "unknown_role"),
        ({"instruction": "x", "output": "y", "history": ["z"]}, "unknown_form"),
    ],
)
def test_reasons(record, reason):
    with pytest.raises(Unusable) as caught:
        read_conversation(record)
    assert caught.value.reason == reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["user", "assistant", "human"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type", "text"]), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(["messages", "conversations", "instruction", "output", "history", "prompt", "response"])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_any_record_is_a_conversation_or_refused(record):
    try:
        found = read_conversation(record)
    except Unusable as error:
        assert error.reason and error.detail
    else:
        assert checked(found) == found and found[-1]["role"] == A


REAL = {  # what is read; of it imported, repeated, set aside for which reason
    "fastchat_dummy_multi_turn": (339, 339, 0, {}),
    "glaive_toolcall_en": (174, 74, 15, {"unknown_role": 85}),
    "oasst_sft_zh": (348, 344, 4, {}),
    "sharegpt_zh_600": (281, 278, 0, {"empty_message": 1, "no_answer": 2}),
    "dolly_sample": (82, 82, 0, {}),
}


def real(name: str) -> str:
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"real samples are not here: {path}")
    return str(path)


def test_real_samples(tmp_path):
    """Every row of five real sets is accounted for, and what was imported passes the contract."""
    for name, (read, imported, repeated, reasons) in REAL.items():
        (report,) = import_instructions(real(name), str(tmp_path / "records"), category="code")
        found = (report["read"], report["imported"], report["repeated"], report["reasons"])
        assert found == (read, imported, repeated, reasons), name
    result = run_gate("instructions", {"instructions": str(tmp_path / "records")}, str(tmp_path / "gate"))
    assert result.passed, [outcome.meaning for outcome in result.failures]


def test_a_file_of_nothing_usable_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"of 25 rows none is a conversation: .*content_part"):
        import_instructions(real("reason_tool_use_50"), str(tmp_path))


def test_rows_set_aside_can_be_found_again(tmp_path):
    good = {"messages": messages((U, "q"), (A, "a")), "id": 7, "category": "code"}
    bad = {"messages": messages((U, "q"))}
    write_shard(tmp_path / "in" / "mixed.jsonl", [good, bad, good])
    with (tmp_path / "in" / "mixed.jsonl").open("ab") as stream:
        stream.write(b"{torn\n")
    (report,) = import_instructions(str(tmp_path / "in"), str(tmp_path / "out"))
    assert (report["read"], report["imported"], report["repeated"], report["quarantined"]) == (4, 1, 1, 2)
    store = open_store(str(tmp_path / "out"))
    (written,) = [item.record for item in read_shard(store, "mixed.jsonl.zst") if isinstance(item, Row)]
    assert (written["source"], written["category"], written["source_id"]) == ("mixed", "code", "7")
    aside = [i.record for i in read_shard(store, "_import/mixed.quarantine.jsonl.zst") if isinstance(i, Row)]
    assert (aside[0]["row"], aside[0]["reason"]) == (1, "no_answer")
    assert Counter(row["reason"] for row in aside) == report["reasons"]
    assert orjson.loads(store.read("_import/mixed.json")) == report


def test_same_rows_same_bytes(tmp_path):
    write_shard(tmp_path / "a.jsonl", [{"question": f"q{i}", "answer": "a"} for i in range(9)])
    for into in ("x", "y"):
        import_instructions(str(tmp_path / "a.jsonl"), str(tmp_path / into))
    assert (tmp_path / "x" / "a.jsonl.zst").read_bytes() == (tmp_path / "y" / "a.jsonl.zst").read_bytes()


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no shard of records"):
        import_instructions(str(tmp_path / "none.jsonl"), str(tmp_path / "out"))


def test_the_command_says_what_became_of_every_row(tmp_path):
    app = typer.Typer()
    register(app)
    write_shard(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}] * 2 + [{"text": "x"}])
    result = CliRunner().invoke(
        app, ["import-instructions", "--from", str(tmp_path / "a.jsonl"), "--into", str(tmp_path / "out")]
    )
    assert result.output == "a.jsonl: read 3 = 1 imported + 1 repeated + 1 set aside (1 unknown_form)\n"
