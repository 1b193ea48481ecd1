"""What DAGs do to Airflow's own database: deadlines that are missed, assets that are updated."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dags_parsing import ROOT

from plugins.local.airflow_home import environment, lineage
from tasks.corpus.artifact import write_artifact
from tasks.corpus.registry import promote, read_registry
from tasks.settings import Settings

SECRETS = ("fernet_key", "secret_key", "jwt_secret")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose line *tiny* has released two models, one after the other."""
    folder = tmp_path_factory.mktemp("in_airflow")
    for name in ("one", "two"):
        uri = str(folder / "store" / "artifacts" / name)
        write_artifact(uri, kind="model", stage="sft", key=name, config_hash="c", code_version=1)
        promote(str(folder / "store"), "tiny", uri, to="released", by="ada", why=name)
    return folder


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, Any]:
    """What `in_airflow.py` leaves, over a fresh Airflow."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "ATHANOR"))}
    own = {
        "AIRFLOW_HOME": str(place / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "ATHANOR_HOME": str(place / "home"),
        "ATHANOR_STORE": str(place / "store"),
        "ATHANOR_DATA": str(place / "landing"),
        "ATHANOR_DEADLINE_HOURS": "1e-6",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **lineage(place, wanted=True),
    }
    command = [sys.executable, str(ROOT / "tests" / "dags" / "in_airflow.py"), str(place / "result.json")]
    done = subprocess.run(command, cwd=ROOT, env=inherited | own, timeout=180, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return {**json.loads((place / "result.json").read_text()), "said": done.stdout + done.stderr}


def test_a_run_that_takes_too_long_is_told_of(found: dict[str, Any]) -> None:
    """Run created, deadline missed, callback queued by the scheduler's code, and run by the triggerer's."""
    deadline = found["deadline"]
    assert deadline["callbacks"] == ["plugins.notifier.deadline_missed"]
    assert deadline["events"] == [["running", "success"]]
    assert "deadline missed: curate_corpus: has not ended" in found["said"]


def test_a_roll_back_updates_the_asset_once_and_what_was_skipped_does_not(place: Path, found: dict[str, Any]) -> None:
    states = found["roll_back"]["states"]
    assert read_registry(str(place / "store"), "tiny")["released"]["uri"].endswith("one")
    assert (states["roll_back"], states["promote"], states["announce"]) == ("success", "skipped", "skipped")
    assert found["roll_back"]["events"] == [["released_model", "tiny", "roll_back"]]


def test_openlineage_is_told_of_tasks_in_a_file(place: Path, found: dict[str, Any]) -> None:
    if find_spec("openlineage") is None:
        pytest.skip("apache-airflow-providers-openlineage is not installed; `make setup` does, from requirements.txt")
    assert found["roll_back"]["states"]["roll_back"] == "success"
    files = sorted((place / "lineage").iterdir())
    assert files and all(re.fullmatch(r"\d{4}-\d\d-\d\d\.jsonl", file.name) for file in files)
    events = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    told = {(event["job"]["namespace"], event["job"]["name"], event["eventType"]) for event in events}
    assert {("athanor", "retrain_domain.roll_back", kind) for kind in ("START", "COMPLETE")} <= told


def test_openlineage_is_off_unless_it_is_wanted(tmp_path: Path) -> None:
    assert lineage(tmp_path, wanted=False)["AIRFLOW__OPENLINEAGE__DISABLED"] == "True"
    told = environment(Settings(home=tmp_path, openlineage=True), tmp_path, dict.fromkeys(SECRETS, "x"))
    assert told["AIRFLOW__OPENLINEAGE__DISABLED"] == "False"
    assert json.loads(told["AIRFLOW__OPENLINEAGE__TRANSPORT"])["folder"] == str(tmp_path / "lineage")


def test_lineage_of_a_month_is_kept_and_no_more(tmp_path: Path) -> None:
    """Through OpenLineage's own client, by the settings that Airflow gets."""
    client = pytest.importorskip("openlineage.client", reason="apache-airflow-providers-openlineage is not installed")
    event = pytest.importorskip("openlineage.client.event_v2")
    folder = tmp_path / "lineage"
    folder.mkdir()
    for day in range(1, 32):
        (folder / f"2020-01-{day:02d}.jsonl").write_text("{}\n")
    (folder / "notes.txt").write_text("a person's own")
    settings = json.loads(lineage(tmp_path, wanted=True)["AIRFLOW__OPENLINEAGE__TRANSPORT"])
    sender = client.OpenLineageClient(config={"transport": settings})
    for number in (1, 2):
        job = event.Job(namespace="athanor", name=f"job {number}")
        sender.emit(event.JobEvent(eventTime="2026-02-01T00:00:00+00:00", producer="https://athanor.example", job=job))
    days = sorted(file.name for file in folder.glob("*.jsonl"))
    assert (len(days), days[0]) == (30, "2020-01-03.jsonl")
    today = [json.loads(line) for line in (folder / days[-1]).read_text().splitlines()]
    assert [item["job"]["name"] for item in today] == ["job 1", "job 2"]
    assert (folder / "notes.txt").exists()
