"""How well a tokenizer fits a corpus: tokens a word, bytes a token, and whether text comes back as it was."""

import heapq
from collections.abc import Iterable
from typing import Any

from tasks.tokens.documents import CuratedDocument, fraction
from tasks.tokens.tokenizer import plain_encoder

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "km"})
SAMPLE_DOCUMENTS = 200  # of each group


def fertility(documents: Iterable[CuratedDocument], tokenizer: Any) -> dict[str, Any]:
    """Of a hash sample of each group (language, or code): `fertility_<group>` and `bytes_per_token_<group>`.

    Fertility is tokens a white-space-separated word; in languages written without spaces, tokens a character.
    `roundtrip_failures` counts sampled documents that do not decode to themselves.
    """
    encoder = plain_encoder(tokenizer)
    metrics: dict[str, Any] = {"roundtrip_failures": 0, "roundtrip_documents": 0}
    for group, texts in sorted(_sample(documents).items()):
        tokens = units = size = 0
        for text, encoding in zip(texts, encoder.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            tokens += len(encoding.ids)
            units += sum(not c.isspace() for c in text) if group in WITHOUT_SPACES else len(text.split())
            size += len(text.encode())
            metrics["roundtrip_failures"] += tokenizer.decode(encoding.ids, skip_special_tokens=False) != text
        metrics["roundtrip_documents"] += len(texts)
        metrics[f"fertility_{group}"] = round(tokens / max(1, units), 4)
        metrics[f"bytes_per_token_{group}"] = round(size / max(1, tokens), 4)
    return metrics


def _sample(documents: Iterable[CuratedDocument]) -> dict[str, list[str]]:
    """Texts of the documents with the smallest hashes, by group."""
    groups: dict[str, list[tuple[float, str, str]]] = {}
    for document in documents:
        item = (-fraction(document.doc_id, "fertility"), document.doc_id, document.text)
        heap = groups.setdefault(document.group, [])
        if len(heap) < SAMPLE_DOCUMENTS:
            heapq.heappush(heap, item)
        else:
            heapq.heappushpop(heap, item)
    return {group: [text for _, _, text in sorted(heap, reverse=True)] for group, heap in groups.items()}
