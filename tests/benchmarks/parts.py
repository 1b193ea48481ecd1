"""What is measured. Each part takes the folders of English and Chinese and one to work in, and returns its figures.

Times are CPU seconds of all processes that did the work, warm: imports and compilation are a part of their own.
"""

import io
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
import zstandard

from tasks.curation import signal_files, steps
from tasks.curation.cluster import dask_client
from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.dedup.shingles import signature
from tasks.curation.rules import failed_rules
from tasks.curation.signals import measure_all
from tasks.settings import CONTRACTS
from tests.benchmarks import rival
from tests.benchmarks.corpus import read, write

REPEATS = 3  # the best counts
WARM = [("Warm up, please. The cat sat on the mat. " * 9, None), ("今天天气很好，我们去公园散步。" * 9, None)]


def best(work: Callable[[], Any]) -> tuple[float, Any]:
    found = []
    for _ in range(REPEATS):
        begun = time.process_time()
        result = work()
        found.append((time.process_time() - begun, result))
    return min(found, key=lambda item: item[0])


def size(records: list[dict[str, str]]) -> int:
    return sum(len(record["text"].encode()) for record in records)


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ("documents", "bytes"):
        if ours[name] != theirs[name]:
            raise SystemExit(f"not the same work: {ours[name]} {name} here, {theirs[name]} there")


def measured(records: list[dict[str, str]], config: CurationConfig) -> pa.Table:
    """Signals and a signature of every record, as the sidecar's table."""
    found = measure_all([(record["text"], None) for record in records], config)
    rows = [{"language": item.language, "kind": item.kind, "nothing_left": False, **item.values} for item in found]
    return pa.Table.from_pylist(rows, schema=signal_files.SCHEMA)


def signatures(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    config, records = load_curation("default").dedup, read(english)
    signature("one two three four five six seven", config)
    seconds, done = best(lambda: len([signature(record["text"], config) for record in records]))
    ours = {"seconds": seconds, "documents": done, "bytes": size(records)}
    theirs = rival.run("signatures", english, scratch)
    equal(ours, theirs)
    return {"ours": ours, "theirs": theirs, "factor": theirs["seconds"] / seconds}


def rules(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    config, records = load_curation("default"), read(english)
    measure_all(WARM, config)
    seconds, failed = best(lambda: failed_rules(measured(records, config), config))
    ours = {"seconds": seconds, "documents": len(failed), "bytes": size(records)}
    theirs = rival.run("rules", english, scratch)
    equal(ours, theirs)
    return {"ours": ours, "theirs": theirs, "factor": theirs["seconds"] / seconds}


def curation(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """At document level, as datatrove does it; then with paragraphs and sentences, for which it has no like.

    Ours takes seconds, of which a moment's noise is a large part: three runs, and the one in the middle counts.
    """
    with dask_client(1):
        curate(write(scratch / "warm", [{"text": text} for text, _ in WARM]), scratch / "warm-out", scratch)
        runs = [curate(english, scratch / f"ours-{number}", scratch) for number in range(REPEATS)]
        ours = sorted(runs, key=lambda run: run["seconds"])[REPEATS // 2]
        every = curate(english, scratch / "levels", None)
    theirs = rival.run("curation", english, scratch / "theirs")
    equal(ours, theirs)
    return {"ours": ours, "levels": every, "theirs": theirs, "factor": theirs["seconds"] / ours["seconds"]}


def document_level(scratch: Path) -> str:
    """The shipped configuration without paragraphs and sentences."""
    shipped = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text(encoding="utf-8"))
    shipped["dedup"] |= {"paragraphs": None, "sentences": None}
    path = scratch / "document-level.yaml"
    path.write_text(yaml.safe_dump(shipped, allow_unicode=True), encoding="utf-8")
    return str(path)


def curate(landing: Path, output: Path, scratch: Path | None) -> dict[str, Any]:
    """The whole of curation inside a `dask_client`; CPU seconds of this process and all its children.

    With `scratch`, at document level alone.
    """
    curation = document_level(scratch) if scratch else "default"
    begun, cpu = time.monotonic(), processor()
    by_step: dict[str, float] = {}
    plan = steps.inventory(str(landing), str(output), "2026-01-01", curation=curation)
    for name, step in (("signals", steps.compute_signals), ("clusters", None), ("verdicts", steps.write_verdicts)):
        before = processor()
        if step is None:
            steps.cluster_duplicates(str(output))
        else:
            for group in plan["groups"]:
                step(str(output), group)
        by_step[name] = round(processor() - before, 3)
    report = steps.publish(str(output))
    return {
        "seconds": processor() - cpu,
        "wall": time.monotonic() - begun,
        "by_step": by_step,
        "documents": report["read"],
        "bytes": report["bytes"]["read"],
        "kept": report["kept"],
        "worker_peak_mb": peak_memory(),
    }


def processor() -> float:
    """CPU seconds of this process and its children so far."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [own, *own.children(recursive=True)])


def peak_memory() -> float:
    """The largest resident memory that a child has had, in MB."""
    peaks = []
    for process in psutil.Process().children(recursive=True):
        status = Path(f"/proc/{process.pid}/status").read_text()
        peaks += [int(line.split()[1]) / 1e3 for line in status.splitlines() if line.startswith("VmHWM")]
    return max(peaks, default=0.0)


def languages(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """Everything that is measured of a document, its signature included, by language."""
    config = load_curation("default")
    measure_all(WARM, config)
    found = {}
    for name, folder in (("english", english), ("chinese", chinese)):
        records = read(folder)

        def work(records: list[dict[str, str]] = records) -> None:
            measured(records, config)
            for record in records:
                signature(record["text"], config.dedup)

        seconds, _ = best(work)
        found[name] = {"seconds": seconds, "bytes": size(records), "documents": len(records)}
    per_byte = {name: item["seconds"] / item["bytes"] for name, item in found.items()}
    return {**found, "ratio": per_byte["chinese"] / per_byte["english"]}


def growth(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """Curation of 1×, 4× and 16× the documents: sentences of real ones dealt anew, so that they are no duplicates."""
    records = [record for record in read(english) if len(record["text"]) > 500][:100]
    found = []
    with dask_client(1):
        curate(write(scratch / "warm", [{"text": text} for text, _ in WARM]), scratch / "warm-out", scratch)
        for times in (1, 4, 16):
            more = [shuffled(record["text"], copy) for record in records for copy in range(times)]
            landing = write(scratch / f"in-{times}", [{"text": text} for text in more])
            found.append({"times": times, **curate(landing, scratch / f"out-{times}", scratch)})
    exponent = math.log(found[-1]["seconds"] / found[0]["seconds"]) / math.log(16)
    return {"runs": found, "exponent": exponent, "worker_peak_mb": max(run["worker_peak_mb"] for run in found)}


def shuffled(text: str, seed: int) -> str:
    words = text.split(" ")
    random.Random(seed).shuffle(words)
    return " ".join(words)


def start(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """A fresh process up to its first measured document, English and Chinese: imports, cached kernels and tables."""
    code = (
        "from tasks.curation.config import load_curation\n"
        "from tasks.curation.dedup.shingles import signature\n"
        "from tasks.curation.signals import measure_all\n"
        "config = load_curation('default')\n"
        f"measure_all({WARM!r}, config)\n"
        "signature('one two three four five six seven', config.dedup)\n"
        "import time; print(time.process_time())"
    )
    found = []
    for _ in range(REPEATS):
        begun = time.monotonic()
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=os.environ)
        found.append((float(done.stdout), time.monotonic() - begun))
    return {"seconds": min(found)[0], "wall": min(wall for _, wall in found)}


def limits(english: Path, chinese: Path, scratch: Path) -> dict[str, Any]:
    """What this machine needs for the work that no curation can do without, in MB of text a second."""
    packed = [path.read_bytes() for path in sorted(english.glob("*.jsonl.zst"))]
    unpack, total = zstandard.ZstdDecompressor(), size(read(english))
    data = [unpack.decompress(piece) for piece in packed]
    records = [orjson.loads(line) for piece in data for line in piece.splitlines()]

    def written() -> None:
        pq.write_table(pa.Table.from_pylist(records), io.BytesIO(), compression="zstd")

    work = {
        "decompress": lambda: [unpack.decompress(piece) for piece in packed],
        "parse": lambda: [orjson.loads(line) for piece in data for line in piece.splitlines()],
        "write": written,
    }
    return {"mb_per_second": {name: total / 1e6 / best(step)[0] for name, step in work.items()}}
