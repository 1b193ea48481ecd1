"""A byte-level BPE tokenizer (Sennrich et al. 2016; bytes as in GPT-2) trained on a curated corpus."""

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tasks.errors import DataError
from tasks.tokens.documents import CuratedDocument, fraction

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

END_OF_TEXT, PAD, TURN_START, TURN_END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, PAD, TURN_START, TURN_END]  # ids 0 to 3; pad differs from eos, or eos would never be learnt

# GPT-4's split (cl100k): words with their leading space, numbers of at most three digits, punctuation, and line breaks
# apart from the indentation that follows them.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def sample_texts(documents: Iterable[CuratedDocument], limit: int) -> list[str]:
    """About `limit` UTF-8 bytes of text: the documents with the smallest hashes, whatever order they come in."""
    chosen: list[tuple[float, str, str]] = []  # a heap whose first item has the largest hash
    size = 0
    for document in documents:
        heapq.heappush(chosen, (-fraction(document.doc_id, "tokenizer"), document.doc_id, document.text))
        size += len(document.text.encode())
        while len(chosen) > 1 and size - len(chosen[0][2].encode()) >= limit:
            size -= len(heapq.heappop(chosen)[2].encode())
    return [text for _, _, text in sorted(chosen, reverse=True)]


def train_tokenizer(texts: Sequence[str], vocab_size: int, context: int) -> "PreTrainedTokenizerFast":
    """Learn merges from texts. The same texts in the same order give the same tokenizer, byte for byte.

    Raises DataError when the texts are too few for a vocabulary of that size.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer, length=len(texts))
    if model.get_vocab_size() < vocab_size:
        raise DataError(
            f"the corpus gives only {model.get_vocab_size()} of {vocab_size} tokens; "
            "add text, or lower vocab_size in the recipe"
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        additional_special_tokens=[TURN_START, TURN_END],
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    )
    tokenizer.chat_template = (Path(__file__).parent / "chatml.jinja").read_text(encoding="utf-8").strip()
    return tokenizer


def load_tokenizer(folder: Path | str) -> "PreTrainedTokenizerFast":
    """The tokenizer in a local folder; never asks the network."""
    from transformers import AutoTokenizer

    if not (Path(folder) / "tokenizer.json").is_file():
        raise DataError(f"{folder}: no tokenizer.json; expected a tokenizer or model artifact")
    return cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder, local_files_only=True))


def plain_encoder(tokenizer: "PreTrainedTokenizerFast") -> "Tokenizer":
    """An encoder for text that is only text: `<|endoftext|>` written in a document is letters, not a token.

    `encode_batch_fast(texts, add_special_tokens=False)` then gives ids whose decoding is the text, exactly.
    """
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    encoder.encode_special_tokens = True
    return encoder
