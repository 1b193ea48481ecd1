"""The Athanor page inside the real Airflow application: who may see what, what is answered, and what is never shown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from distributed import Client

from tasks.corpus.manifest import read_manifest
from tasks.corpus.registry import promote, read_registry
from tasks.corpus.shards import write_shard
from tasks.curation import steps
from tasks.curation.cluster import _activated
from tasks.curation.config import CurationConfig
from tasks.curation.signal_files import signals_key
from tests.curation.test_steps import english

DATE, RUN = "2026-01-15", "manual__2026-01-15T00:00:00+00:00__x"
ROOT = "/athanor/page"
FORBIDDEN = re.compile(r"innerHTML|outerHTML|insertAdjacent|\beval\b|https?://(?!www\.w3\.org/2000/svg)")
SECRET = "mail ada@example.org or ring +44 20 7946 0958 <script>alert(1)</script>"
SAMPLE = {
    "name": "page.js",
    "dag_id": "curate_corpus",
    "run_id": RUN,
    "snapshot": DATE,
    "shard": "0123456789abcdef",
    "row": "0",
    "key": "0" * 32,
    "line": "tiny",
    "pointer": "candidate",
}


@dataclass
class Shown:
    """A store with one damaged and one failed shard, and a client of Airflow's API server."""

    store: str
    output: str
    client: Any
    tokens: dict[str, str]

    def get(self, path: str, role: str | None = "VIEWER", **headers: str) -> Any:
        return self.send("GET", path, role, **headers)

    def send(self, method: str, path: str, role: str | None, body: Any = None, **headers: str) -> Any:
        if role:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, f"{ROOT}/{path}", headers=named, json=body)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Nine shards: one with rows to mend, one whose signals could not be written."""
    root = tmp_path_factory.mktemp("page")
    landing, out = root / "landing" / DATE, root / "store" / "corpus" / DATE
    for number in range(8):
        texts = [{"text": english(10 * number + row)} for row in range(3)]
        write_shard(landing / "web" / f"part-{number}.jsonl", texts)
    rows = [b'{"text": "' + SECRET.encode() + b'", "id": "ada@example.org"}', b'{"text": ""}', b"not json"]
    (landing / "web" / "part-8.jsonl").write_bytes(b"\n".join(rows))
    groups = steps.inventory(str(landing), str(out), DATE)["groups"]
    manifest = read_manifest(str(out))
    config = CurationConfig.model_validate(manifest.curation)
    (out / "signals" / f"{signals_key(manifest.shards[3], config)}.parquet").mkdir(parents=True)
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(**options) as client, _activated(client):
        for group in groups:
            steps.compute_signals(str(out), group, budget=0.2)
        steps.cluster_duplicates(str(out), budget=0.2)
        for group in groups:
            steps.write_verdicts(str(out), group)
        steps.publish(str(out))
    return str(out)


@pytest.fixture(scope="module")
def airflow() -> Any:
    """Airflow's application with the plugin, over a fresh database that holds one run."""
    from airflow import settings
    from airflow.api_fastapi.app import create_app, get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.models import import_all_models
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.models.base import Base
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from fastapi.testclient import TestClient
    from sqlalchemy import insert

    import_all_models()
    Base.metadata.create_all(settings.engine)
    began = datetime(2026, 1, 15, tzinfo=UTC)
    with settings.Session() as session:  # type: ignore[misc]  # set when Airflow starts
        session.add(DagBundleModel(name="dags-folder"))
        asset = AssetModel(name="released_model", uri="released_model", group="model")
        session.add(asset)
        session.flush()
        session.add(AssetActive.for_asset(asset))
        for dag_id in ("curate_corpus", "train_cascade", "somebody_elses"):
            session.add(DagModel(dag_id=dag_id, bundle_name="dags-folder"))
            session.flush()
            run: dict[str, Any] = {"dag_id": dag_id, "run_id": RUN, "run_type": "manual", "state": "running"}
            run["run_after"] = began
            session.add(DagRun(**run, start_date=began, conf={"snapshot": DATE}))
            session.flush()
        for index, state in enumerate(("success", "failed")):
            row = {"dag_id": "curate_corpus", "run_id": RUN, "task_id": "compute_signals", "map_index": index}
            times = {"start_date": began, "end_date": began + timedelta(seconds=30 + index)}
            fixed = {"pool": "default_pool", "pool_slots": 1, "try_number": 1, "max_tries": 2, "queue": "q"}
            values = {**row, **times, **fixed, "state": state, "priority_weight": 1, "executor_config": {}}
            session.execute(insert(TaskInstance).values(**values, unixname="u", hostname="h"))
        for weight, task_id in ((4, "publish"), (3, "gate"), (2, "announce")):  # grows with what follows
            row = {"dag_id": "curate_corpus", "run_id": RUN, "task_id": task_id, "map_index": -1, "state": None}
            values = {**row, **fixed, "priority_weight": weight, "executor_config": {}}
            session.execute(insert(TaskInstance).values(**values, unixname="u", hostname="h"))
        session.commit()
    app = create_app(apps="core")
    roles = {"VIEWER": "VIEWER", "USER": "USER", "NOBODY": None}
    users = {name: SimpleAuthManagerUser(username=name.lower(), role=role) for name, role in roles.items()}
    tokens = {name: get_auth_manager().generate_jwt(user) for name, user in users.items()}
    return TestClient(app, raise_server_exceptions=False), tokens


@pytest.fixture
def shown(output: str, airflow: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shown]:
    client, tokens = airflow
    store = str(Path(output).parents[1])
    monkeypatch.setenv("ATHANOR_STORE", store)
    monkeypatch.setenv("ATHANOR_HOME", str(tmp_path))
    yield Shown(store, output, client, tokens)


def routes() -> list[tuple[str, str]]:
    """Method and path of every route of the page, with names in place of its parameters."""
    from plugins.page.app import app

    found = []
    for route in app.routes:
        path = re.sub(r"\{(\w+)(:path)?\}", lambda match: SAMPLE[match[1]], route.path)  # type: ignore[attr-defined]
        found += [(method, path.lstrip("/")) for method in route.methods]  # type: ignore[attr-defined]
    return found


def test_no_route_answers_without_a_login_or_to_a_user_without_a_role(shown: Shown) -> None:
    assert len(routes()) > 15
    for method, path in routes():
        assert shown.send(method, path, None, {}).status_code == 401, path
        assert shown.send(method, path, "NOBODY", {}).status_code == 403, path


def test_who_may_look_may_not_decide(shown: Shown) -> None:
    decisions = [(method, path) for method, path in routes() if method != "GET"]
    assert len(decisions) == 2
    for method, path in decisions:
        assert shown.send(method, path, "VIEWER", {"released": "", "why": "because"}).status_code == 403
        body = {"released": "", "why": "because"}
        answer = shown.send(method, path, "USER", body, Sec_Fetch_Site="cross-site")
        assert (answer.status_code, answer.json()["detail"]) == (403, "requests from other sites are refused")


def test_nothing_runs_inline_and_nothing_comes_from_elsewhere(shown: Shown) -> None:
    page = shown.get("")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert names and all(name == "runbook" or name.startswith("static/") for name in names)
    assert not re.search(r"<script(?![^>]*src)|<style|\bon\w+=|style=", page.text)
    for path in (Path(__file__).parents[2] / "plugins" / "page" / "static").iterdir():
        answer = shown.get(f"static/{path.name}")
        assert (answer.status_code, answer.content) == (200, path.read_bytes())
        assert not FORBIDDEN.search(answer.text), path.name


@pytest.mark.parametrize(
    "path", ["static/..%2Fapp.py", "static/app.py", "static/../app.py", "api/shards/..%2F..", "api/training/..%2F.."]
)
def test_names_are_no_paths(shown: Shown, path: str) -> None:
    assert shown.get(path).status_code in (404, 422)


def test_runs_are_those_of_our_dags(shown: Shown) -> None:
    runs = shown.get("api/runs").json()["runs"]
    assert {run["dag_id"] for run in runs} == {"curate_corpus", "train_cascade"}
    step, *to_come = next(run for run in runs if run["dag_id"] == "curate_corpus")["steps"]
    assert [one["name"] for one in to_come] == ["publish", "gate", "announce"], "in the DAG's order, not the alphabet's"
    assert (step["name"], step["state"], step["counts"]) == ("compute_signals", "failed", {"success": 1, "failed": 1})
    assert step["worker_seconds"] == 61.0
    run = shown.get(f"api/runs/curate_corpus/{RUN}").json()
    assert run["conf"] == {"snapshot": DATE}
    assert shown.get(f"api/runs/somebody_elses/{RUN}").status_code == 404


def test_the_board_leads_to_the_failing_shard_and_row(shown: Shown) -> None:
    assert shown.get("api/snapshots").json() == {"snapshots": [DATE]}
    found = shown.get(f"api/shards/{DATE}").json()
    assert found["cells"] == "dddfddddp"
    assert found["states"] == {"failed": 1, "problems": 1, "waiting": 0, "measured": 0, "decided": 7}
    assert found["left_out"] == ["web/part-3.jsonl"]
    assert found["totals"]["read"] == 24 == sum(found["totals"][name] for name in ("kept", "dropped", "quarantined"))
    (failure,) = found["failures"]
    assert (failure["shard"], failure["step"]) == ("web/part-3.jsonl", "signals")
    assert "repair this shard" in failure["remedy"]
    (row,) = shown.get(f"api/shards/{DATE}?state=problems&sort=kept_share&descending=true").json()["rows"]
    detail = shown.get(f"api/shards/{DATE}/{row['id']}").json()
    faults = {item["reasons"][0]["rule"]: item["reasons"][0]["remedy"] for item in detail["quarantined_rows"]["rows"]}
    assert set(faults) == {"blank_text", "not_json"} and all(faults.values())
    worst_first = shown.get(f"api/shards/{DATE}?sort=state").json()["cells"]
    assert worst_first == "fp" + "d" * 7
    assert shown.get(f"api/shards/{DATE}?text=part-8").json()["total"] == 1
    assert shown.get(f"api/shards/{DATE}?sort=moon").status_code == 422
    assert shown.get("api/shards/2001-01-01").status_code == 404


def test_what_has_not_changed_is_not_sent_again(shown: Shown) -> None:
    for path in (f"api/shards/{DATE}", "api/gates", "api/releases"):
        first = shown.get(path)
        again = shown.get(path, If_None_Match=first.headers["etag"])
        assert (again.status_code, again.content) == (304, b""), path


def test_documents_are_shown_masked(shown: Shown) -> None:
    (row,) = shown.get(f"api/shards/{DATE}?text=part-8").json()["rows"]
    text = shown.get(f"api/shards/{DATE}/{row['id']}/rows/0")
    assert text.headers["content-type"] == "application/json"
    assert "[e-mail]" in text.json()["text"] and "[number]" in text.json()["text"]
    dropped = shown.get(f"api/shards/{DATE}/{row['id']}/rows?verdict=dropped").json()
    identity = dropped["rows"][0]["doc_id"]
    found = shown.get(f"api/why/{DATE}?document={identity[:8]}").json()
    assert found["verdicts"][0]["doc_id"] == identity and found["next"] is None
    assert found["verdicts"][0]["source_id"] == "[e-mail]"
    for answer in (text, shown.get(f"api/why/{DATE}?document={identity}")):
        assert "ada@example" not in answer.text and "7946" not in answer.text


def decide(shown: Shown, action: str, released: str, why: str) -> Any:
    return shown.send("POST", f"api/releases/tiny/{action}", "USER", {"released": released, "why": why})


def test_a_release_is_decided_by_name_and_with_a_reason(shown: Shown) -> None:
    from airflow import settings
    from airflow.models.asset import AssetEvent
    from airflow.models.log import Log

    from dags.assets import RELEASED_MODEL
    from tasks.corpus.artifact import write_artifact

    for name in ("one", "two"):
        uri = str(Path(shown.store) / "artifacts" / "sft" / name)
        write_artifact(uri, kind="model", stage="sft", key=name, config_hash="c", code_version=1)
        promote(shown.store, "tiny", uri)
        released = (read_registry(shown.store, "tiny")["released"] or {"hash": ""})["hash"]
        answer = decide(shown, "promote", released, f"{name} is good")
        assert answer.status_code == 200, answer.text
    second = read_registry(shown.store, "tiny")["released"]
    assert decide(shown, "promote", second["hash"], "the same once more").status_code == 200
    stale = decide(shown, "rollback", "0" * 64, "worse")
    assert stale.status_code == 409 and "rebase" in stale.json()["detail"]
    assert decide(shown, "rollback", second["hash"], "worse answers").status_code == 200
    registry = shown.get("api/releases").json()
    assert registry["may_decide"] is False, "a viewer looks"
    line = registry["lines"]["tiny"]
    assert line["released"]["uri"].endswith("one") and line["candidate"]["uri"].endswith("two")
    assert (line["history"][-1]["by"], line["history"][-1]["why"]) == ("user", "worse answers")
    nothing = decide(shown, "rollback", line["released"]["hash"], "again")
    assert nothing.status_code == 409 and "nothing to go back to" in nothing.json()["detail"]
    with settings.Session() as session:  # type: ignore[misc]  # set when Airflow starts
        rows = [row for row in session.query(Log) if row.event.startswith("athanor")]
        events = [(event.name, event.partition_key, event.extra) for event in session.query(AssetEvent)]
        logged = [(row.event, row.owner, orjson.loads(row.extra)["why"]) for row in rows]
    assert ("athanor roll back", "user", "worse answers") in logged
    one, two = line["released"]["hash"], second["hash"]
    assert [event[:2] for event in events] == [(RELEASED_MODEL.name, "tiny")] * 3
    assert [event[2]["released"] for event in events] == [one, two, one], "as often as another model was released"
    ancestors = shown.get("api/lineage/tiny/released").json()["ancestors"]
    assert ancestors[0]["uri"].endswith("one")


def test_a_stage_report_is_served_by_id_behind_the_login(shown: Shown) -> None:
    model, login = "ab" * 32, {"Authorization": f"Bearer {shown.tokens['VIEWER']}"}
    folder = Path(shown.store) / "evaluations" / model
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>sft</h1>")
    where = "/athanor/reports/evaluations"
    assert shown.client.get(f"{where}/{model}").status_code == 401
    found = shown.client.get(f"{where}/{model}", headers=login)
    assert (found.text, "default-src 'none'" in found.headers["Content-Security-Policy"]) == ("<h1>sft</h1>", True)
    for wrong in (model[:16], "..%2Fcorpus", "cd" * 32):
        assert shown.client.get(f"{where}/{wrong}", headers=login).status_code == 404


def test_a_gate_shows_its_report_first_and_data_docs_second_behind_the_login(shown: Shown) -> None:
    from tasks.gates.gate import run_gate

    run_gate("curated", {"corpus": shown.output}, f"{shown.store}/gates/curated/{'0a' * 8}")
    (gate,) = shown.get("api/gates").json()["gates"]
    assert (gate["report"], gate["data_docs"]) == (f"curated/{'0a' * 8}", True)
    login = {"Authorization": f"Bearer {shown.tokens['VIEWER']}"}
    for path in (gate["report"], f"{gate['report']}/data-docs"):
        assert shown.client.get(f"/athanor/reports/{path}").status_code == 401
        found = shown.client.get(f"/athanor/reports/{path}", headers=login)
        assert found.status_code == 200 and "default-src 'none'" in found.headers["Content-Security-Policy"]
    assert "As Great Expectations says it" in found.text
    for wrong in ("curated/0b0b0b0b0b0b0b0b/data-docs", "..%2Fgates/0a0a0a0a0a0a0a0a/data-docs"):
        assert shown.client.get(f"/athanor/reports/{wrong}", headers=login).status_code == 404
    (Path(shown.store) / "gates" / gate["report"] / "data_docs.html").unlink()
    assert shown.get("api/gates").json()["gates"][0]["data_docs"] is False, "of a gate of before"


def test_a_megabyte_of_run_configuration_is_refused_in_words(shown: Shown) -> None:
    login, body = {"Authorization": f"Bearer {shown.tokens['USER']}"}, {"conf": {"reason": "x" * 2**20}}
    answered = shown.client.post("/api/v2/dags/curate_corpus/dagRuns", headers=login, json=body)
    assert answered.status_code == 413
    assert "Put data into the store or the landing zone" in answered.json()["detail"]
