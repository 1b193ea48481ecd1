"""S3 through a proxy that spoils requests: right result, no object half-written, nothing secret in a log."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest

from tasks.corpus import s3_client, s3_stream
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import Store, join, open_store, upload_folder
from tasks.errors import StorageError
from tests.chaos import faulty_proxy
from tests.chaos.faulty_proxy import Plan
from tests.chaos.runs import curate, english, tree

Through = Callable[[Plan], Store]


@pytest.fixture
def through(bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Through]:
    """The bucket, seen through a proxy that follows a plan."""
    with ExitStack() as stack:

        def start(plan: Plan) -> Store:
            address = stack.enter_context(faulty_proxy.faulty_proxy(s3_server, plan))
            monkeypatch.setenv("AWS_ENDPOINT_URL", address)
            s3_client.client.cache_clear()
            return open_store(bucket)

        yield start
    s3_client.client.cache_clear()


def directly(bucket: str, s3_server: str) -> tuple[object, str, str]:
    """A client that sees the server itself, the bucket's name, and the prefix."""
    name, _, prefix = bucket.removeprefix("s3://").partition("/")
    return boto3.client("s3", endpoint_url=s3_server), name, prefix


# A client that adapts to a busy store answers a share of these by waiting, in all for minutes.
SLOW_DOWN = pytest.param(faulty_proxy.SLOW_DOWN, marks=pytest.mark.slow)
DROPS = tuple(kind for kind in faulty_proxy.KINDS if kind != faulty_proxy.SLOW_DOWN)


@pytest.mark.parametrize("kind", [*DROPS, SLOW_DOWN])
def test_every_operation_is_right_in_the_end(through: Through, kind: str, tmp_path: Path) -> None:
    plan = Plan(seed=1, share=0.1 if kind == faulty_proxy.SLOW_DOWN else 0.4, kinds=[kind])
    store = through(plan)
    data = {f"a/{n}": random.Random(n).randbytes(3000 * n) for n in range(12)}
    for key, value in data.items():
        assert store.write(key, value)
    assert [entry.key for entry in store.list()] == sorted(data)
    assert {key: store.read(key) for key in data} == data
    assert store.write("once", b"1", if_absent=True)
    assert not store.write("once", b"2", if_absent=True)
    assert store.compare_and_swap("once", b"1", b"3")
    assert not store.compare_and_swap("once", b"1", b"4")
    assert store.read("once") == b"3"
    big = tmp_path / "big"
    big.write_bytes(random.Random(0).randbytes(20 << 20))
    store.upload(big, "big")
    store.download("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    store.delete("once")
    assert not store.exists("once")
    assert sum(plan.happened.values()) >= 3, plan.happened


def test_a_busy_store_is_waited_for(through: Through) -> None:
    plan = Plan(seed=1, share=1, kinds=[faulty_proxy.SLOW_DOWN], first=1)
    store = through(plan)
    store.write("k", b"1")
    assert (store.read("k"), [entry.key for entry in store.list()], store.size("k")) == (b"1", ["k"], 1)
    assert {method for method, _ in plan.happened} == {"PUT", "GET", "HEAD"}
    assert sum(plan.happened.values()) == 4


def test_a_body_that_breaks_is_taken_up_where_it_broke(through: Through, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_stream, "FIRST_WAIT", 0.01)
    data = random.Random(0).randbytes(1 << 20)
    plan = Plan(seed=2, share=1, kinds=[faulty_proxy.IN_ANSWER], method="GET", first=5)
    store = through(plan)
    store.write("k", data)
    with store.open("k") as stream:
        assert stream.read() == data
    assert plan.happened["GET", faulty_proxy.IN_ANSWER] == 5


def test_a_body_that_always_breaks_is_an_error_that_names_it(through: Through, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_stream, "FIRST_WAIT", 0.001)
    store = through(Plan(seed=3, share=1, kinds=[faulty_proxy.IN_ANSWER], method="GET"))
    store.write("some key", b"xy")
    with pytest.raises(StorageError, match="some key: broke off 8 times at byte 1"):
        store.read("some key")


def test_an_object_that_is_replaced_while_it_is_read_is_never_spliced(bucket: str) -> None:
    store = open_store(bucket)
    store.write("k", b"a" * 300_000)
    with store.open("k") as stream:
        assert stream.read(10) == b"a" * 10
        store.write("k", b"b" * 300_000)
        stream.seek(200_000)
        with pytest.raises(StorageError, match="k: was replaced while it was read"):
            stream.read(10)


@pytest.mark.parametrize("kind", [faulty_proxy.IN_REQUEST, faulty_proxy.BEFORE, SLOW_DOWN])
def test_a_write_that_fails_leaves_the_old_object(
    through: Through, bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client, name, prefix = directly(bucket, s3_server)
    open_store(bucket).write("k", b"old")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    store = through(Plan(seed=4, share=1, kinds=[kind], method="PUT"))
    for write in (store.write, lambda key, data: store.compare_and_swap(key, b"old", data)):
        with pytest.raises(StorageError, match="k: "):
            write("k", b"new and longer" * 1000)
    assert client.get_object(Bucket=name, Key=f"{prefix}/k")["Body"].read() == b"old"  # type: ignore[attr-defined]


def test_a_large_upload_that_fails_is_aborted(
    through: Through, bucket: str, s3_server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client, name, _ = directly(bucket, s3_server)
    (tmp_path / "big").write_bytes(b"x" * (20 << 20))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    store = through(Plan(seed=5, share=1, kinds=[faulty_proxy.IN_REQUEST], method="PUT"))
    with pytest.raises(StorageError, match="big: "):
        store.upload(tmp_path / "big", "big")
    assert not store.exists("big")
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)  # type: ignore[attr-defined]


def test_a_conditional_put_whose_answer_was_lost_knows_its_own_work(through: Through) -> None:
    store = through(Plan(seed=6, share=1, kinds=[faulty_proxy.NO_ANSWER], method="PUT", first=1))
    assert store.write("new", b"mine", if_absent=True)
    assert not store.write("new", b"another's", if_absent=True)
    assert store.read("new") == b"mine"


def corpus(folder: Path) -> Path:
    for shard in range(5):
        rows = [{"text": english(7 * shard + n), "id": f"{shard}-{n}"} for n in range(9)]
        suffix = (".jsonl.zst", ".parquet", ".jsonl.gz")[shard % 3]
        write_shard(folder / "web" / f"{shard}{suffix}", rows)
    (folder / "web" / "bad.jsonl").write_bytes(b"no JSON\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [DROPS, faulty_proxy.KINDS], ids=["drops", "drops and 503"])
def test_curation_gives_the_same_bytes_as_in_a_folder_and_writes_no_credential(
    through: Through, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: None, kinds: list[str]
) -> None:
    """Credentials appear neither in what is printed on a good and on a bad day, nor in what is stored."""
    secrets = {"AWS_ACCESS_KEY_ID": "AKIAQWERTYUIOPASDFGH", "AWS_SECRET_ACCESS_KEY": "s3cr3t/zxcvbnm+QAZWSX"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    landing = corpus(tmp_path / "in")
    curate(landing, tmp_path / "out")
    upload_folder(landing, join(bucket, "in"))
    plan = Plan(seed=7, share=0.05, kinds=kinds)
    store = through(plan)

    good, bad = command("in", bucket), command("nothing here", bucket)
    assert good.returncode == 0, good.stderr
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1) and "has no shards" in bad.stderr
    assert tree(join(bucket, "out")) == tree(tmp_path / "out")
    assert len({kind for _, kind in plan.happened}) >= 3, plan.happened
    written = b"".join(store.read(entry.key) for entry in store.list("out/"))
    printed = (good.stdout + good.stderr + bad.stdout + bad.stderr).encode()
    assert [secret for secret in secrets.values() if secret.encode() in printed + written] == []


def command(source: str, bucket: str) -> "subprocess.CompletedProcess[str]":
    """`python -m tasks curate`, from the bucket into the bucket."""
    arguments = ["curate", "--workers", "1", "--snapshot", "2026-11-30"]
    arguments += ["--input", join(bucket, source), "--output", join(bucket, "out")]
    return subprocess.run([sys.executable, "-m", "tasks", *arguments], capture_output=True, text=True, timeout=600)
