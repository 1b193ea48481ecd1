"""The documents of the benchmark: real English and Chinese text, the same for both sides."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import orjson
import zstandard

REPOSITORY = Path(__file__).resolve().parents[2]
WORK = REPOSITORY / ".athanor" / "bench"
SHARED = REPOSITORY.parent / "shared" / "data" / "dev"
ENGLISH = (
    "web/c4_en_demo", "web/dclm_human_quality", "web/dpk_cc_annotated", "wiki/enwiki_demo", "papers/pubmed_abstracts",
    "books/us_presidential_speeches", "books/gutenberg_editions", "books/shakespeare_plays",
    "web/article_extractor_variants", "domain_legal/legalbench_train_en",
)  # fmt: skip
CHINESE = ("wiki/zhwiki_paragraphs_cmrc", "books/classical_chinese", "papers/csl_zh_abstracts")
SHARDS = 4


def read(folder: Path) -> list[dict[str, str]]:
    """Every record of a corpus that `write` wrote, in order."""
    unpack = zstandard.ZstdDecompressor()
    found = []
    for path in sorted(folder.glob("*.jsonl.zst")):
        found += [orjson.loads(line) for line in unpack.decompress(path.read_bytes()).splitlines()]
    return found


def write(folder: Path, records: list[dict[str, str]]) -> Path:
    """Records dealt over four shards, as zstd writes them with its content size."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(SHARDS):
        lines = [orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records[number::SHARDS]]
        (folder / f"{number:02d}.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=3).compress(b"".join(lines)))
    return folder


def corpora(megabytes: float) -> tuple[Path, Path]:
    """Folders of English and Chinese, each of about so many MB, or all there is."""
    folders = []
    for name, keys in (("english", ENGLISH), ("chinese", CHINESE)):
        folder = WORK / f"{name}-{megabytes:g}"
        if not folder.is_dir():
            write(folder, list(_some(keys, megabytes * 1e6)))
        folders.append(folder)
    return folders[0], folders[1]


def _some(keys: tuple[str, ...], size: float) -> Iterator[dict[str, str]]:
    """The same share of each set."""
    texts = {key: [record["text"] for record in _rows(key) if record.get("text")] for key in keys}
    share = min(1.0, size / sum(len(text.encode()) for found in texts.values() for text in found))
    for key, found in texts.items():
        taken = 0
        for number, text in enumerate(found):
            if number * share >= taken:
                taken += 1
                yield {"id": f"{key}-{number}", "text": text}


def _rows(key: str) -> Iterator[dict[str, str]]:
    path = SHARED / f"{key}.jsonl.gz"
    if not path.exists():
        raise SystemExit(f"{path}: not there; the benchmark needs the development data beside this checkout")
    with gzip.open(path) as stream:
        for line in stream:
            yield orjson.loads(line)
