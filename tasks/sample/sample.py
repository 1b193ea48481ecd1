"""What every source of the harvest yields, and the order in which it does so."""

import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MAX_DOCUMENT_BYTES = 300_000
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")
_KANA_OR_HANGUL = re.compile(r"[\u3040-\u30ff\uac00-\ud7af]")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One harvested document. `id` and `url` name packages and files inside them, never a place on this machine.

    `url` is a package URL (purl, e.g. `pkg:pypi/click@8.3.1`); `timestamp` is a date that the text itself states.
    """

    id: str
    text: str
    source: str
    url: str | None = None
    timestamp: str | None = None
    kind: str | None = None

    @property
    def size(self) -> int:
        """Length of the text in UTF-8 bytes."""
        return len(self.text.encode("utf-8"))

    def record(self) -> dict[str, str]:
        """The shard record: only the keys that are known."""
        pairs = {
            "id": self.id,
            "text": self.text,
            "source": self.source,
            "url": self.url,
            "timestamp": self.timestamp,
            "kind": self.kind,
        }
        return {key: value for key, value in pairs.items() if value is not None}


def read_text(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> str | None:
    """Text of a file (gunzipped when its name ends in .gz), or None for what is no usable text.

    Unreadable, larger than `limit` bytes, not UTF-8, holding NUL, or blank: a harvest takes what there is and passes
    over the rest.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(limit + 1)
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, gzip.zlib.error):  # type: ignore[attr-defined]
        return None
    return text if len(data) <= limit and "\0" not in text and text.strip() else None


def rank(seed: int, key: str) -> bytes:
    """A place in a shuffled order that depends on seed and key alone, so that a new file moves no other."""
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8, key=seed.to_bytes(8, "big")).digest()


def shuffled(items: Iterable[T], seed: int, key: Callable[[T], str]) -> list[T]:
    """Items in the seeded order of their keys."""
    return sorted(items, key=lambda item: (rank(seed, key(item)), key(item)))


def interleaved(items: Iterable[T], seed: int, group: Callable[[T], str], key: Callable[[T], str]) -> Iterator[T]:
    """One item of every group in turn, shuffled inside a group: large packages do not crowd out small ones."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)
    queues = [shuffled(groups[name], seed, key)[::-1] for name in shuffled(groups, seed, str)]
    while queues:
        for queue in queues:
            yield queue.pop()
        queues = [queue for queue in queues if queue]


def is_chinese(text: str, share: float = 0.2) -> bool:
    """Whether at least `share` of the characters that are not white space are Han, and hardly any is kana or hangul."""
    visible = len("".join(text.split()))
    han = len(_HAN.findall(text))
    return visible > 0 and han >= share * visible and len(_KANA_OR_HANGUL.findall(text)) * 20 <= han
