"""What the assistant says, token by token, under templates in the formats of several model families."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from tasks.errors import DataError
from tasks.tokens.chat import UnfitRecord, check_template, encode_conversation
from tasks.tokens.tokenizer import train_tokenizer

MARKED = None  # the project's own, with {% generation %}
CHATML = (  # SmolLM2, Qwen2: a system message of its own when there is none
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' "
    "+ m['content'] | trim + '<|eot_id|>' %}{% if loop.first %}{{ '<|begin_of_text|>' }}{% endif %}{{ text }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
GEMMA = (
    "{{ '<s>' }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
EXTRA = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>"]
EXTRA += ["<start_of_turn>", "<end_of_turn>"]
END = {CHATML: "<|im_end|>", LLAMA3: "<|eot_id|>", MISTRAL: "</s>", ZEPHYR: "</s>", GEMMA: "<end_of_turn>"}
TEMPLATES = {"own": MARKED, "chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "zephyr": ZEPHYR, "gemma": GEMMA}

SINGLE = [{"role": "user", "content": "Is it so?"}, {"role": "assistant", "content": "It is so."}]
MULTI = [
    *SINGLE,
    {"role": "user", "content": "And why?"},
    {"role": "assistant", "content": "Because\n\nof 猫 it."},
]


@pytest.fixture(scope="module")
def base():
    tokenizer = train_tokenizer(["Is it so? It is so. And why? Because of that user assistant system " * 20], 300, 512)
    tokenizer.add_tokens([AddedToken(token, special=True) for token in EXTRA], special_tokens=True)
    return tokenizer


@pytest.fixture
def tokenizer(base, request):
    own, base.chat_template = base.chat_template, request.param or base.chat_template
    yield base
    base.chat_template = own


def spoken(tokenizer, messages) -> list[str]:
    """The runs of tokens that are marked, decoded."""
    ids, mask = encode_conversation(tokenizer, messages)
    runs: list[list[int]] = []
    for place, marked in enumerate(mask):
        if marked and (place == 0 or not mask[place - 1]):
            runs.append([])
        if marked:
            runs[-1].append(int(ids[place]))
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False)
    return [tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize("tokenizer", TEMPLATES.values(), ids=TEMPLATES, indirect=True)
@pytest.mark.parametrize("messages", [SINGLE, MULTI], ids=["single", "multi"])
def test_exactly_the_answers_are_marked(tokenizer, messages):
    end = END.get(tokenizer.chat_template, "<|im_end|>")
    space = " " if tokenizer.chat_template == MISTRAL else ""
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    assert spoken(tokenizer, messages) == [f"{space}{answer}{end}" for answer in answers]


@pytest.mark.parametrize("tokenizer", [MARKED, CHATML, LLAMA3], ids=["own", "chatml", "llama3"], indirect=True)
@pytest.mark.parametrize("messages", [SINGLE, MULTI], ids=["single", "multi"])
def test_golden_mask_token_by_token(tokenizer, messages):
    """Written out by hand: every token of a conversation of one and two turns, and whether the loss sees it."""
    ids, mask = encode_conversation(tokenizer, messages)
    pieces = [(tokenizer.decode([i]), bool(marked)) for i, marked in zip(ids, mask, strict=True)]
    end = END.get(tokenizer.chat_template, "<|im_end|>")
    expected: list[tuple[str, bool]] = []
    for message in messages:
        marked = message["role"] == "assistant"
        content = tokenizer(message["content"], add_special_tokens=False)["input_ids"]
        head, tail = {
            "<|eot_id|>": (["<|start_header_id|>", message["role"], "<|end_header_id|>", "\n\n"], []),
            "<|im_end|>": (["<|im_start|>", message["role"], "\n"], ["\n"]),
        }[end]
        expected += [(piece, False) for piece in head]
        expected += [(tokenizer.decode([i]), marked) for i in content] + [(end, marked)]
        expected += [(piece, False) for piece in tail]
    if tokenizer.chat_template == CHATML:
        head = tokenizer("<|im_start|>system\nYou are helpful.<|im_end|>\n", add_special_tokens=False)["input_ids"]
        expected = [(tokenizer.decode([i]), False) for i in head] + expected
    if tokenizer.chat_template == LLAMA3:
        expected.insert(0, ("<|begin_of_text|>", False))
    assert merged(pieces) == merged(expected)
    assert len(pieces) > 10 and 0 < sum(mask) < len(mask)


def merged(pieces: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Letter by letter, so that it does not matter how a role's name is cut into tokens."""
    return [(letter, marked) for text, marked in pieces for letter in text]


@pytest.mark.parametrize("tokenizer", [MARKED], indirect=True)
def test_derived_mask_equals_the_marked_one(tokenizer):
    """The project's own template without its marker gives the same mask."""
    marked = encode_conversation(tokenizer, MULTI)
    template = tokenizer.chat_template
    tokenizer.chat_template = template.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    derived = encode_conversation(tokenizer, MULTI)
    assert derived[0].tolist() == marked[0].tolist() and derived[1].tolist() == marked[1].tolist()


SPECIAL = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>", *EXTRA]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY_TEXT.filter(lambda text: not any(token in text for token in SPECIAL)), min_size=2, max_size=6))
def test_any_text_is_marked_whole(base, texts):
    """With a template that does not trim, the answers come back from the mask to the letter."""
    texts = texts[: len(texts) // 2 * 2]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    own, base.chat_template = base.chat_template, CHATML
    try:
        assert spoken(base, messages) == [text + "<|im_end|>" for text in texts[1::2]]
    finally:
        base.chat_template = own


FORGETFUL = (  # drops what earlier answers thought, as some reasoning models' templates do
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{{ '<think></think>' if m['role'] == 'assistant' and loop.last else '' }}{{ m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMELESS = "{{ messages[-1]['content'] }}"  # the question is not in the text at all
SILENT = "{% generation %}{% endgeneration %}{{ messages[0]['content'] }}"


@pytest.mark.parametrize("tokenizer", [FORGETFUL], indirect=True)
def test_template_that_rewrites_earlier_turns_is_an_error(tokenizer):
    check_template(tokenizer)
    with pytest.raises(DataError, match="cannot mark the assistant's words") as caught:
        encode_conversation(tokenizer, MULTI)
    assert not isinstance(caught.value, UnfitRecord), "the template's fault, not the record's"


@pytest.mark.parametrize("tokenizer", [NAMELESS], indirect=True)
def test_template_that_cannot_mark_is_an_error(tokenizer):
    with pytest.raises(DataError, match="generation"):
        check_template(tokenizer)


@pytest.mark.parametrize("tokenizer", [SILENT], indirect=True)
def test_template_that_marks_nothing_is_an_error(tokenizer):
    with pytest.raises(DataError, match="marks nothing"):
        check_template(tokenizer)


@pytest.mark.parametrize("tokenizer", [MISTRAL], indirect=True)
def test_record_that_the_template_refuses_has_a_reason(tokenizer):
    with pytest.raises(UnfitRecord) as caught:
        encode_conversation(tokenizer, [{"role": "system", "content": "s"}, *SINGLE])
    assert caught.value.reason == "refused_by_template"
