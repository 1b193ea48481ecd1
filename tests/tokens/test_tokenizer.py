"""The tokenizer: text comes back as it was, training repeats to the byte, special tokens stay special."""

import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import DataError
from tasks.tokens.chat import check_template, encode_conversation
from tasks.tokens.documents import CuratedDocument, split_of
from tasks.tokens.tokenizer import SPECIAL, load_tokenizer, plain_encoder, sample_texts, train_tokenizer

CHINESE = "我能吞下玻璃而不伤身体。床前明月光，疑是地上霜。" * 20


@pytest.fixture(scope="module")
def texts():
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [CHINESE, *((folder / name).read_text() for name in ("ast.py", "calendar.py", "textwrap.py", "uuid.py"))]


@pytest.fixture(scope="module")
def tokenizer(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(texts, 700, 64).save_pretrained(folder)
    return load_tokenizer(folder)


def test_same_texts_give_the_same_bytes(texts, tokenizer, tmp_path):
    train_tokenizer(texts, 700, 64).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (Path(tokenizer.name_or_path) / name).read_bytes()


def test_special_tokens(tokenizer):
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert tokenizer.eos_token_id == 0 and tokenizer.pad_token_id == 1
    assert len(tokenizer) == 700


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_round_trip(tokenizer, text):
    ids = plain_encoder(tokenizer).encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|im_end|>b", "\x00\ufeff\u202e\r\n \t ", "🏳️‍🌈é\u0301"])
def test_round_trip_of_awkward_text(tokenizer, text):
    ids = plain_encoder(tokenizer).encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert not set(ids) & {0, 1, 2, 3}, "text must never become a special token"


def test_too_little_text_is_said():
    with pytest.raises(DataError, match="lower vocab_size"):
        train_tokenizer(["too little"], 5000, 64)


def test_sample_does_not_depend_on_order():
    documents = [CuratedDocument(f"{i:032x}", f"text {i} " * 20, "s", "en", "prose") for i in range(200)]
    sample = sample_texts(documents, 4000)
    assert sample == sample_texts(reversed(documents), 4000)
    assert 4000 <= sum(map(len, sample)) < 4000 + 200


def test_split_is_stable_and_grows():
    names = [f"{i:032x}" for i in range(2000)]
    few = {name for name in names if split_of(name, 0.05) == "heldout"}
    more = {name for name in names if split_of(name, 0.10) == "heldout"}
    assert few < more
    assert 60 < len(few) < 140


def test_assistant_mask_token_by_token(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "def one():\n    return 1"},
        {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": " two "},
    ]
    ids, mask = encode_conversation(tokenizer, messages)
    spans, current = [], []
    for token, learnt in zip(ids, mask, strict=True):
        if learnt:
            current.append(token)
        elif current:
            spans.append(tokenizer.decode(current))
            current = []
    assert spans == ["def one():\n    return 1<|im_end|>", " two <|im_end|>"]
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
        "<|im_start|>assistant\ndef one():\n    return 1<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n"
        "<|im_start|>assistant\n two <|im_end|>\n"
    )


def test_generation_prompt_is_the_training_prefix(tokenizer):
    asked = [{"role": "user", "content": "One?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    ids, mask = encode_conversation(tokenizer, [*asked, {"role": "assistant", "content": "def one()"}])
    assert list(ids[: len(prompt)]) == prompt
    assert not mask[: len(prompt)].any() and mask[len(prompt)]


def test_template_without_marker_is_refused(tokenizer):
    check_template(tokenizer)
    plain = load_tokenizer(tokenizer.name_or_path)
    plain.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(DataError, match="generation"):
        check_template(plain)


def test_special_token_in_a_message_is_refused(tokenizer):
    with pytest.raises(DataError, match="im_end"):
        encode_conversation(tokenizer, [{"role": "user", "content": "hi<|im_end|>"}])
