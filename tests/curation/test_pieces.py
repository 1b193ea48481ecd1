"""Pieces of work: killed and continued, cut short and made again, and bounded in memory."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed import Client

from tasks.curation.config import DedupConfig
from tasks.curation.dedup.levels import LINKED
from tasks.curation.dedup.plan import DOCUMENT, cut_into_parts
from tasks.settings import REPOSITORY
from tests.curation.clustering import find_duplicates, losers, plan_texts
from tests.curation.test_dedup import families, reference

RUN = """
import sys
from distributed import Client
from tests.curation.clustering import Members, find_duplicates

texts = [open(path).read().split("\\x1e") for path in sys.argv[2:]]
with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    find_duplicates(client, sys.argv[1], "document", Members(texts))
"""

# One template, with facts of its own in each document. Prints how much memory the steps took beyond a tiny run.
BOUNDED = """
import re, sys
from pathlib import Path
import psutil
from tasks.curation.dedup import levels
from tasks.curation.config import DedupConfig
from tests.curation.clustering import find_duplicates, plan_texts, losers

def one_after_another(client, step, run, parts, *arguments):
    return [step(part, *arguments) for part in range(parts)]

def texts(count):
    frame = " ".join(f"word{n}" for n in range(50))
    for number in range(count):
        yield f"{frame} {' '.join(f'fact{number}x{n}' for n in range(10))}"

levels.each = one_after_another
folder, count, budget, parts = Path(sys.argv[1]), *map(int, sys.argv[2:])
config = DedupConfig(memory_budget=budget)
work, members = plan_texts(folder / "tiny", list(texts(50)), config, 1)
find_duplicates(None, work, "document", members)
work, members = plan_texts(folder / "large", list(texts(count)), config, parts)
Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
before = psutil.Process().memory_info().rss >> 20
found = find_duplicates(None, work, "document", members)
# not ru_maxrss, which begins at what the process that started this one had
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
print(found["candidates"], len(losers(work, parts)), peak - before)
"""


# One shard through every step. Prints how much memory that took beyond the process with all it needs loaded.
SHARD = """
import re, sys
from pathlib import Path
import orjson, psutil, zstandard
from tasks.curation import steps
from tasks.curation.dedup import levels
from tests.chaos.runs import english

def here(client, step, items, *arguments, on_done=None):
    return [step(item, *arguments) for item in items], []

def curate(landing, output):
    steps.inventory(str(landing), str(output), "2026-01-01")
    steps.compute_signals(str(output), "group-0")
    steps.cluster_duplicates(str(output))
    steps.write_verdicts(str(output), "group-0")
    return steps.publish(str(output))

def write(folder, size):
    folder.mkdir(parents=True)
    with (folder / "a.jsonl.zst").open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        written = number = 0
        while written < size:
            text = "\\n\\n".join(english(6 * number + paragraph, 8) for paragraph in range(6))
            line = orjson.dumps({"id": number, "text": text}) + b"\\n"
            packed.write(line)
            number, written = number + 1, written + len(line)

steps.map_shards = levels.map_shards = here
steps.dask_client = lambda *_: __import__("contextlib").nullcontext()
folder, size = Path(sys.argv[1]), int(sys.argv[2]) << 20
write(folder / "tiny" / "web", 1 << 16)
curate(folder / "tiny", folder / "tiny-out")
write(folder / "large" / "web", size)
Path("/proc/self/clear_refs").write_text("5")
before = psutil.Process().memory_info().rss >> 20
kept = curate(folder / "large", folder / "large-out")["kept"]
peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
print(kept, before, peak - before)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def test_a_killed_run_goes_on_where_it_stopped(in_process: Client, tmp_path: Path) -> None:
    texts = families(120)
    work, members = plan_texts(tmp_path, texts)
    paths = []
    for number, part in enumerate(members.texts):
        paths.append(str(tmp_path / f"{number}.txt"))
        Path(paths[-1]).write_text("\x1e".join(part))
    child = subprocess.Popen([sys.executable, "-c", RUN, work, *paths], cwd=REPOSITORY, env=environment())
    seen = Path(work) / DOCUMENT / "edges-0" / "00000.json"
    limit = time.monotonic() + 300
    while not seen.exists() and child.poll() is None and time.monotonic() < limit:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert seen.exists()
    finished = {path: path.stat().st_mtime_ns for path in Path(work).rglob("*.json")}
    find_duplicates(in_process, work, DOCUMENT, members)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    assert sorted(losers(work, 3), key=lambda lost: lost.number) == reference(texts)


@pytest.mark.parametrize("step", ["members", "bands", "edges-0", "candidates", "decided"])
def test_a_piece_that_was_cut_short_is_made_again(in_process: Client, tmp_path: Path, step: str) -> None:
    texts = families(20)
    work, members = plan_texts(tmp_path, texts)
    find_duplicates(in_process, work, DOCUMENT, members)
    expected = losers(work, 3)
    folder = Path(work) / DOCUMENT
    before = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    victim = folder / step / "00001.parquet"
    os.truncate(victim, victim.stat().st_size // 2)
    if step in ("bands", "edges-0"):  # nobody needs them when the links are finished
        (folder / LINKED).unlink()
    find_duplicates(in_process, work, DOCUMENT, members)
    assert losers(work, 3) == expected
    assert {path: path.read_bytes() for path in folder.rglob("*.parquet")} == before


def bounded(folder: Path, documents: int, budget: int, parts: int) -> tuple[int, int, int]:
    """Candidates, losers and MiB of memory of a clustering of unlike documents of one template."""
    program = [sys.executable, "-c", BOUNDED, str(folder), *map(str, (documents, budget, parts))]
    done = subprocess.run(program, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    candidates, lost, memory = map(int, done.stdout.split())
    return candidates, lost, memory


def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """Thirty thousand documents in one component, whose shingles do not fit in a load."""
    candidates, lost, memory = bounded(tmp_path, 30_000, 128, 2)
    assert (candidates, lost) == (30_000, 0)
    assert memory <= 128


@pytest.mark.slow
def test_a_bucket_with_a_million_members_stays_within_the_budget(tmp_path: Path) -> None:
    candidates, lost, memory = bounded(tmp_path, 1_000_000, 2048, 2)
    assert candidates >= 999_000 and lost == 0  # a few share no band with any other
    assert memory <= 2048


def test_parts_follow_the_budget_and_not_the_groups() -> None:
    from tasks.corpus.manifest import Shard

    shards = [Shard(id=str(n), key=f"{n}", size=1, checksum="", group="g") for n in range(40)]
    small = cut_into_parts(shards, [10] * 40, DedupConfig().memory_budget << 20)
    assert [len(part) for part in small] == [40]
    large = cut_into_parts(shards, [50_000] * 40, 64 << 20)
    assert [len(part) for part in large] == [1] * 40
    assert [shard for part in large for shard in part] == shards
    spread = cut_into_parts(shards, [2_000] * 40, DedupConfig().memory_budget << 20)
    assert len(spread) == 8


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most"), [(128, 600), (1024, 1600)])
def test_a_large_shard_stays_within_the_budget(tmp_path: Path, size: int, most: int) -> None:
    """A shard of so many MiB; `most` is what may be added to the process at rest. Both fit the default budget."""
    command = [sys.executable, "-c", SHARD, str(tmp_path), str(size)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    kept, before, grown = map(int, done.stdout.split()[-3:])
    print(f"{size} MiB: {kept} documents kept, {before} MiB at rest, {grown} MiB more at the peak")
    assert kept > 300 * size
    assert grown <= most and before + grown <= 2048
