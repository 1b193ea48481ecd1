"""Credentials of the store from the Airflow connection `athanor_s3`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from plugins import credentials
from plugins.listener import on_task_instance_running
from plugins.local.airflow_home import prepare
from tasks.corpus.storage import open_store
from tasks.settings import settings

SECRET = "s3cr3t/of+the=connection"
GIVEN = {
    "conn_type": "aws",
    "login": "AKIACONNECTION",
    "password": SECRET,
    "extra": {"region_name": "eu-north-1", "aws_session_token": "a token"},
}
NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES, "AWS_ENDPOINT_URL", credentials.ENVIRONMENT):
        monkeypatch.setenv(name, "")  # so that what a test puts there is undone
        monkeypatch.delenv(name)


def test_a_task_finds_the_connection_where_boto3_looks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], s3_server: str
) -> None:
    with_endpoint = {**GIVEN, "extra": {**GIVEN["extra"], "endpoint_url": s3_server}}  # type: ignore[dict-item]
    monkeypatch.setenv(credentials.ENVIRONMENT, json.dumps(with_endpoint))
    monkeypatch.setenv("ATHANOR_STORE", "s3://connected/store")
    on_task_instance_running(None, None)
    assert [os.environ.get(name) for name in NAMES] == ["AKIACONNECTION", SECRET, "a token", "eu-north-1"]
    boto3.client("s3").create_bucket(Bucket="connected", CreateBucketConfiguration={"LocationConstraint": "eu-north-1"})
    open_store("s3://connected/store").write("k", b"1")
    assert open_store("s3://connected/store").read("k") == b"1"
    assert SECRET not in "".join(capfd.readouterr())


def test_without_a_connection_the_standard_chain_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the chain")
    monkeypatch.setenv("ATHANOR_STORE", "s3://bucket")
    credentials.use_connection()
    assert [os.environ.get(name) for name in NAMES] == ["of the chain", None, None, None]


def test_where_nothing_lies_on_s3_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(credentials.ENVIRONMENT, json.dumps(GIVEN))
    monkeypatch.setenv("ATHANOR_HOME", str(tmp_path))
    credentials.use_connection()
    assert "AWS_ACCESS_KEY_ID" not in os.environ


@pytest.mark.slow
def test_a_connection_of_airflows_database_is_found_by_the_runner(tmp_path: Path) -> None:
    """As one that was entered in the UI: encrypted in the database, and read by no other way than Airflow's own."""
    _, environment = prepare(settings(home=tmp_path))

    def airflow(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "airflow", *words], env=environment, check=True, capture_output=True)

    airflow("db", "migrate")
    airflow("connections", "add", credentials.CONNECTION, "--conn-json", json.dumps(GIVEN))
    assert SECRET.encode() not in (tmp_path / "airflow" / "airflow.db").read_bytes()
    credentials.use_connection_of(environment)
    assert [os.environ.get(name) for name in NAMES] == ["AKIACONNECTION", SECRET, "a token", "eu-north-1"]
    airflow("connections", "delete", credentials.CONNECTION)
    credentials.use_connection_of(environment)  # that there is none is no error
