"""Stage *tokenizer*: curated corpus → a byte-level BPE tokenizer and the corpus as packed token shards.

With a base model its tokenizer is taken instead of learning one.
"""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.corpus.artifact import file_hash
from tasks.corpus.storage import LocalStore
from tasks.tokens.documents import CuratedDocument, read_documents, split_of
from tasks.tokens.shards import write_token_shards
from tasks.tokens.tokenizer import sample_texts, train_tokenizer
from tasks.training.context import Context
from tasks.training.origin import Origin
from tasks.training.recipe import TokenizerStage


def run(context: Context) -> None:
    """Learn a tokenizer or take one over, encode everything, publish."""
    config = context.spec.config
    assert isinstance(config, TokenizerStage)
    corpus = context.spec.data["corpus"].uri
    shutil.rmtree(context.output, ignore_errors=True)
    context.output.mkdir(parents=True)
    context.rewind(0)
    start = time.monotonic()

    if config.base:
        tokenizer = _taken(context, config.base, config.sequence_length)
    else:
        tokenizer = _learnt(context, config, corpus)
    tokenizer.save_pretrained(context.output)
    context.report(step=2, steps=3, what="encoding the corpus")

    index = write_token_shards(
        context.output / "tokens",
        in_tiers(read_documents(corpus), config.tiers),
        tokenizer,
        tokenizer_hash=file_hash(LocalStore(context.output), "tokenizer.json").sha256,
        sequence_length=config.sequence_length,
        heldout_share=config.heldout_share,
    )
    train, heldout = index.splits["train"], index.splits["heldout"]
    context.report(step=3, steps=3, what=f"{train.tokens:,} tokens, {heldout.tokens:,} held out")

    context.publish(
        "tokenizer",
        {
            "vocab_size": index.vocab_size,
            "tokens": train.tokens,
            "heldout_tokens": heldout.tokens,
            "documents": train.documents,
            "heldout_documents": heldout.documents,
            "seconds": round(time.monotonic() - start, 1),
        },
    )


def _learnt(context: Context, config: TokenizerStage, corpus: str) -> Any:
    """Merges learnt on a sample of the training documents."""
    learnable = (d for d in read_documents(corpus) if split_of(d.doc_id, config.heldout_share) == "train")
    texts = sample_texts(learnable, config.sample_bytes)
    context.report(step=1, steps=3, what=f"learning {config.vocab_size:,} tokens from {len(texts):,} documents")
    return train_tokenizer(texts, config.vocab_size, config.sequence_length)


def _taken(context: Context, origin: Origin, length: int) -> Any:
    """The base model's own."""
    from tasks.training.base import base_tokenizer

    context.report(step=1, steps=3, what="taking the base model's tokenizer")
    return base_tokenizer(Path(context.spec.data["base"].uri), origin, length)


def in_tiers(documents: Iterable[CuratedDocument], tiers: Mapping[str, tuple[str, ...]]) -> Iterator[CuratedDocument]:
    """The documents with the tier that the recipe gives their source; one that the corpus gave stays."""
    tier_of = {source: tier for tier, sources in tiers.items() for source in sources}
    for document in documents:
        yield document if document.tier else replace(document, tier=tier_of.get(document.source, ""))
