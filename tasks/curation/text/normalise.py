"""Normalisation: the text that is measured and kept."""

import unicodedata


def normalise(text: str) -> str:
    """What is kept: Unicode NFC (never NFKC, which changes meaning), no byte-order mark, `\\n` line ends."""
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)
