"""Instruction records: read with every row counted, split by content, packed without losing a word."""

import numpy as np
import pytest

from tasks.corpus.shards import write_shard
from tasks.errors import DataError
from tasks.tokens.tokenizer import train_tokenizer
from tasks.training.instructions import pack_conversations, read_instructions
from tasks.training.recipe import SftStage, TuningOptimizer

LENGTH = 48


def config(**changes) -> SftStage:
    values = {"name": "sft", "kind": "sft", "steps": 1, "heldout_share": 0.3, "sequence_length": LENGTH} | changes
    return SftStage(optimizer=TuningOptimizer(learning_rate=0.1), **values)


def record(question: str, answer: str) -> dict:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["what is the capital of this or that country " * 20], 280, LENGTH)


@pytest.fixture
def folder(tmp_path):
    records = [record(f"q{i}", f"a{i}") for i in range(100)]
    write_shard(tmp_path / "a.jsonl.zst", [*records, records[0], {"text": "no messages"}])
    write_shard(tmp_path / "b.jsonl", [{"messages": [{"role": "robot", "content": "x"}]}, {"messages": []}])
    (tmp_path / "harvest.json").write_text("{}")
    return tmp_path


def test_every_row_is_counted(folder):
    found = read_instructions(str(folder), config())
    assert found.counts == {"read": 104, "unreadable": 3, "repeated": 1, "beyond_max_records": 0}
    assert sum(map(len, found.splits.values())) == 100


def test_split_follows_content_not_place(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write_shard(other / "z.jsonl.gz", [record(f"q{i}", f"a{i}") for i in reversed(range(100))])
    ids = [{c.id for c in read_instructions(str(place), config()).splits["heldout"]} for place in (folder, other)]
    assert ids[0] == ids[1] and 15 < len(ids[0]) < 45


def test_most_records(folder):
    found = read_instructions(str(folder), config(max_records=40))
    assert sum(map(len, found.splits.values())) == 40 and found.counts["beyond_max_records"] == 60


def test_too_few_records_are_refused(tmp_path):
    write_shard(tmp_path / "a.jsonl", [record("q", "a")])
    with pytest.raises(DataError, match="add records"):
        read_instructions(str(tmp_path), config())


def test_packing_keeps_every_conversation(folder, tokenizer):
    found = read_instructions(str(folder), config())
    source = pack_conversations(found.splits["train"], tokenizer, LENGTH, found.counts)
    assert found.counts["used"] == len(found.splits["train"])
    texts = []
    for i in range(len(source)):
        sequence, units = source[i], source.units(i)
        assert len(sequence.ids) <= LENGTH
        for unit in np.unique(units):
            part = sequence.ids[units == unit]
            assert sequence.positions[units == unit].tolist() == list(range(len(part)))
            learnt = tokenizer.decode(part[sequence.supervised[units == unit]])
            assert learnt.startswith("a") and learnt.endswith("<|im_end|>")
            texts.append(learnt)
    expected = [c.messages[1]["content"] + "<|im_end|>" for c in found.splits["train"]]
    assert sorted(texts) == sorted(expected)


def test_what_is_cut_or_left_out_is_counted(tmp_path, tokenizer):
    answer = "the capital of this country"
    records = [record("q", answer), record("q", answer * 30), record("q" * 200, answer), record("<|im_end|>", answer)]
    write_shard(tmp_path / "a.jsonl", records * 8)
    write_shard(tmp_path / "b.jsonl", [record(f"q{i}", "a") for i in range(30)])
    found = read_instructions(str(tmp_path), config())
    conversations = [c for split in found.splits.values() for c in split]
    pack_conversations(conversations, tokenizer, LENGTH, found.counts)
    assert found.counts["used"] == 32
    assert found.counts["cut"] == 2
    assert found.counts["nothing_to_learn"] == 1
    assert found.counts["special_token_in_text"] == 1
