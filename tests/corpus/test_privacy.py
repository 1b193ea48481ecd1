"""What is hidden from a report, and what is not."""

import pytest

from tasks.corpus.privacy import excerpt, mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("write to jane.doe+x@mail.example.org today", "write to [e-mail] today"),
        ("jane (at) example.org", "[e-mail]"),
        ("请联系 张三@例子.中国 谢谢", "请联系 [e-mail] 谢谢"),
        ("call +49 (170) 123-4567 now", "call [number] now"),
        ("电话13800138000。", "电话[number]。"),
        ("身份证 11010519491231002X", "身份证 [number]"),
        ("card 4111 1111 1111 1111.", "card [number]."),
        ("SSN 078-05-1120", "SSN [number]"),
        ("from 192.168.10.7 came", "from [IP address] came"),
    ],
)
def test_personal_data_is_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    ["in 1984 there were 300 pages", "on 2025-01-31 at noon", "deadbeef00112233445566778899aabb"],
)
def test_plain_numbers_dates_and_hashes_stay(text: str) -> None:
    assert mask(text) == text


def test_the_cut_does_not_uncover_an_address() -> None:
    text = "x" * 230 + " jane.doe@example.org"
    assert "jane" not in excerpt(text, 240)


def test_long_text_is_cut_and_control_characters_are_shown() -> None:
    assert excerpt("a\x00b\u202ec") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert excerpt("\udc80").encode("utf-8")
    assert excerpt("word " * 1000, 50) == ("word " * 10).rstrip() + " …"
