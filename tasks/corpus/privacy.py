"""Corpus text as it may be shown: personal data masked, control characters made visible, cut to length.

Simple recognisers on purpose: they hide too much rather than too little, for a report that many people may see.
"""

import re

E_MAIL = re.compile(r"[\w.+-]+\s?(?:@|\(at\)|\[at\])\s?[\w-]+(?:\.[\w-]+)+")
# Bank cards, identity numbers (18 digits, the last may be X), telephone numbers: 7 or more digits that only
# separators part. Digits inside a longer word, such as a hash in hex, are no number, and neither is a date. Chinese
# puts no space before a number, so only Latin letters make a longer word.
NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])(?!\d{4}-\d{2}-\d{2}(?!\d))(?:\+|\(|00)?\d(?:[ ().\-–/]{0,2}\d){6,18}[xX]?(?![A-Za-z0-9_])"
)
ADDRESS = re.compile(r"(?<![A-Za-z0-9_.])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\d)")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LOOK_AHEAD = 200  # characters read beyond the cut, so that the cut does not hide an address from its recogniser


def mask(text: str, *, numbers: bool = True) -> str:
    """`text` with e-mail addresses, and unless told otherwise IP addresses and long numbers, replaced by their kind."""
    text = E_MAIL.sub("[e-mail]", text)
    return NUMBER.sub("[number]", ADDRESS.sub("[IP address]", text)) if numbers else text


def excerpt(text: str, limit: int = 240, *, numbers: bool = True) -> str:
    """The head of `text`, masked and safe to encode, of at most about `limit` characters. Not yet HTML-escaped."""
    head = mask(text[: limit + LOOK_AHEAD], numbers=numbers)
    head = CONTROL.sub("\N{REPLACEMENT CHARACTER}", head)
    return head if len(head) <= limit and len(text) <= limit + LOOK_AHEAD else head[:limit].rstrip() + " …"
