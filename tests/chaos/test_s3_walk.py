"""The whole walk on S3, through a proxy that spoils requests, with a machine that is lost on the way."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from plugins.credentials import ENVIRONMENT as CONNECTION
from tasks.corpus import s3_client
from tasks.corpus.storage import join, open_store, upload_folder
from tests.chaos.calm import Calm, corpus_of, weights_of
from tests.chaos.faulty_proxy import Plan, faulty_proxy
from tests.end_to_end.runner import LIMIT, Runner

pytestmark = pytest.mark.slow

KEY, SECRET = "AKIAQWERTYUIOPASDFGH", "s3cr3t/zxcvbnm+QAZWSX/of+the/walk"
BUCKET = "athanor-walk"


@pytest.fixture
def server(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The S3 server with an empty bucket; this process alone has other credentials than those of the connection."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "of the test",
        "AWS_SECRET_ACCESS_KEY": "of the test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3_client.client.cache_clear()
    boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield s3_server
    s3_client.client.cache_clear()


def runner_of(home: Path, address: str) -> Runner:
    """Corpus, artifacts and checkpoints on S3, whose credentials an Airflow connection alone has."""
    connection = {
        "conn_type": "aws",
        "login": KEY,
        "password": SECRET,
        "extra": {"endpoint_url": address, "region_name": "us-east-1"},
    }
    nowhere = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    variables = {**nowhere, CONNECTION: json.dumps(connection)}
    return Runner(home, f"s3://{BUCKET}/landing", f"s3://{BUCKET}/athanor", variables)


def files_with(secret: str, folder: Path) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes()
    ]


def test_it_ends_as_in_a_folder_though_requests_fail_and_a_machine_is_lost(
    calm: Calm, server: str, tmp_path: Path
) -> None:
    upload_folder(calm.landing, f"s3://{BUCKET}/landing")
    plan = Plan(seed=11, share=0.03)
    with faulty_proxy(server, plan) as address:
        lost = runner_of(tmp_path / "lost", address)
        process = lost.start("run")
        await_copy(lost, process)
        lost.cut_the_power(process)
        assert lost.left() == []
        secrets = files_with(SECRET, lost.home)
        shutil.rmtree(lost.home)

        runner = runner_of(tmp_path / "found", address)
        process = runner.start("run")
        text = runner.output(process)
        assert process.returncode == 0, text
    assert runner.left() == []
    assert (corpus_of(runner.store), weights_of(runner.store)) == (calm.corpus, calm.weights)
    logs = [path.read_text(errors="replace") for path in (runner.home / "jobs").glob("*/log.txt")]
    assert any("checkpoint_fetched" in log for log in logs), "training went on from the lost machine's checkpoint"
    assert len({kind for _, kind in plan.happened}) >= 4 and len({method for method, _ in plan.happened}) >= 3
    assert secrets + files_with(SECRET, runner.home) == []
    assert SECRET not in text and KEY not in text
    stored = open_store(f"s3://{BUCKET}")
    assert not [entry.key for entry in stored.list() if SECRET.encode() in stored.read(entry.key)]
    assert "Uploads" not in boto3.client("s3").list_multipart_uploads(Bucket=BUCKET), "no upload is left half done"


def await_copy(runner: Runner, process: "subprocess.Popen[str]") -> None:
    """Until a checkpoint of pretraining lies in the store."""
    copies = open_store(join(runner.store, "jobs"))
    deadline = time.monotonic() + LIMIT
    while not any(entry.key.endswith("/mirror.json") for entry in copies.list()):
        assert process.poll() is None, "the run ended before"
        assert time.monotonic() < deadline, "no checkpoint was seen in the store"
        time.sleep(0.2)
