"""New records of a domain start its retraining, through the watcher and through REST, and end in the released model."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api, ApiError
from plugins.local.follow import complaints
from tasks.cascade.domains import look, trained
from tasks.corpus.artifact import read_artifact
from tasks.corpus.lineage import walk
from tasks.corpus.registry import promote, read_registry
from tasks.corpus.shards import write_shard
from tests.chaos.runs import english
from tests.end_to_end.real_parts import until
from tests.end_to_end.runner import LIMIT, SNAPSHOT, Runner
from tests.training.tuning_data import LENGTH, make_parent

pytestmark = pytest.mark.slow

RETRAIN, WATCH, LINE = "retrain_domain", "watch_domains", "micro"
DOMAIN = """
schema_version: 1
name: {name}
title: {name}
minimum_tokens: 500
approval: {approval}
stage:
  name: sft
  kind: sft
  processes: 1
  micro_batch: 4
  sequence_length: %d
  steps: 6
  checkpoint_every: 3
  heldout_share: 0.25
  optimizer: {{learning_rate: 1.0e-3, warmup_steps: 1, weight_decay: 0.0}}
""" % LENGTH  # noqa: UP031 - braces are for `format`


@dataclass
class Place:
    runner: Runner
    api: Api
    told: list[dict[str, Any]]  # what the webhook was sent

    def land(self, domain: str, name: str, first: int, count: int) -> None:
        records = []
        for seed in range(first, first + count):
            asked = {"role": "user", "content": f"What is known of case {seed} of {domain}?"}
            records.append({"messages": [asked, {"role": "assistant", "content": english(seed, 3)}]})
        write_shard(Path(self.runner.data) / "domains" / domain / name, records)

    def announce(self, domain: str) -> None:
        """What another system does: an asset event with the domain as its partition, through REST."""
        (asset,) = self.api._get("/assets?name_pattern=domain_data")["assets"]
        before = len(self.events("domain_data"))
        while len(self.events("domain_data")) == before:  # a busy SQLite may refuse, and nothing has happened then
            with suppress(ApiError):
                self.api.post("/assets/events", {"asset_id": asset["id"], "partition_key": domain, "extra": {}})

    def events(self, asset: str) -> list[str]:
        """The partitions for which an asset was updated, in turn."""
        found = self.api._get("/assets/events?limit=100&order_by=timestamp")["asset_events"]
        return [event["partition_key"] for event in found if event["name"] == asset]

    def runs(self) -> list[dict[str, Any]]:
        return self.api.runs(RETRAIN)

    def new_run(self, known: set[str]) -> str:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            found = [run["dag_run_id"] for run in self.runs() if run["dag_run_id"] not in known]
            if found:
                return found[0]
            time.sleep(1.0)
        raise AssertionError("no run was started")

    def states(self, run_id: str) -> dict[str, str]:
        return {item["task_id"]: item["state"] for item in self.api.task_instances(RETRAIN, run_id)}

    def until(self, run_id: str, *states: str, task: str = "") -> str:
        """The state of a run or of one of its tasks, once it is one of these."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            state = self.states(run_id).get(task, "") if task else self.api.run(RETRAIN, run_id)["state"]
            if state in states:
                return state
            assert self.api.run(RETRAIN, run_id)["state"] != "failed" or "failed" in states, self.states(run_id)
            time.sleep(1.0)
        raise AssertionError((run_id, task, states, self.states(run_id)))

    def answer(self, run_id: str, option: str) -> None:
        """What a person clicks in the UI."""
        self.until(run_id, "awaiting_input", task="approve")
        path = f"/dags/{RETRAIN}/dagRuns/{run_id.replace('+', '%2B')}/taskInstances/approve/-1/hitlDetails"
        try:
            self.api._patch(path, {"chosen_options": [option], "params_input": {}})
        except ApiError as error:  # 409: it was heard when it was sent first, and sent again for want of an answer
            assert error.status == 409, error

    def said(self, run_id: str, task: str) -> str:
        (found,) = [item for item in self.api.task_instances(RETRAIN, run_id) if item["task_id"] == task]
        log = self.api.log(found)
        return "\n".join([*complaints(log), *(str(record.get("reason", "")) for record in log)])

    def jobs(self) -> set[str]:
        return {folder.name for folder in (self.runner.home / "jobs").glob("*")}

    def released(self) -> dict[str, Any]:
        return read_registry(self.runner.store, LINE)["released"]

    def ancestors(self) -> set[str]:
        return {item.artifact.stage for item in walk(self.released()["uri"]) if item.artifact}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Airflow is up, a model is released, and a webhook listens."""
    root, told = tmp_path_factory.mktemp("retraining"), []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Nothing: the test looks at what was told."""

    with HTTPServer(("127.0.0.1", 0), Hook) as hook, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=hook.serve_forever, args=(0.1,), daemon=True).start()
        patch.setenv("ATHANOR_NOTIFY_WEBHOOK", f"http://127.0.0.1:{hook.server_address[1]}/")
        patch.setenv("ATHANOR_DOMAINS", str(root / "configured"))
        patch.setenv("ATHANOR_DEADLINE_HOURS", "0.005")  # 18 seconds
        (root / "configured").mkdir()
        for name, approval in (("alpha", "never"), ("beta", "always")):
            (root / "configured" / f"{name}.yaml").write_text(DOMAIN.format(name=name, approval=approval))
        write_shard(root / "landing" / SNAPSHOT / "web" / "a.jsonl", [{"text": english(1)}])
        runner = Runner(root / "home", root / "landing")
        promote(runner.store, LINE, make_parent(root / "made"), to="released", by="ada", why="the first")
        up = runner.start("up")
        printed = runner.output(up)
        assert up.returncode == 0, printed
        state = json.loads((runner.home / "airflow" / "guardian.json").read_text())
        guardian = psutil.Process(state["pid"])
        runner.seen |= {guardian, *guardian.children(recursive=True)}
        api = Api(
            state["url"], "admin", json.loads((runner.home / "airflow" / "passwords.json").read_text())["admin"]
        )
        until(lambda: all(api.dag(dag_id) for dag_id in (RETRAIN, WATCH)))
        api.pause(RETRAIN, paused=False)
        try:
            yield Place(runner, api, told)
        finally:
            runner.output(runner.start("down"))
            assert runner.left() == []
            hook.shutdown()


def test_two_domains_at_once_end_in_one_released_model(place: Place) -> None:
    base = place.released()["hash"]
    place.land("alpha", "a.jsonl", 100, 60)
    place.land("beta", "a.jsonl", 300, 60)
    place.api.pause(WATCH, paused=False)
    looked = place.api.trigger(WATCH, {}, None, "not to wait for ten minutes")
    first = place.new_run(set())
    second = place.new_run({first})
    until(lambda: place.api.run(WATCH, looked)["state"] == "success", LIMIT)
    place.api.pause(WATCH, paused=True)  # the other tests announce what lands themselves
    by_domain = {place.api.run(RETRAIN, run)["partition_key"]: run for run in (first, second)}
    assert set(by_domain) == {"alpha", "beta"}, "the watcher announced both, each as a partition"
    beta = by_domain["beta"]
    place.until(by_domain["alpha"], "success")
    alpha = place.released()
    assert alpha["hash"] != base and place.ancestors() >= {"sft.alpha"}

    place.answer(beta, "Approve")
    place.until(beta, "success")
    assert place.states(beta)["rebase"] == "success", "another model was released meanwhile"
    assert place.released() == alpha, "and not lost"
    rebased = place.new_run({first, second})
    place.answer(rebased, "Approve")
    place.until(rebased, "success")
    assert place.states(rebased)["rebase"] == "skipped"
    assert place.ancestors() >= {"sft.alpha", "sft.beta"}, "both are in the released model"
    assert place.states(rebased)["gate"] == "success", "and the gate was held again"
    history = [item for item in read_registry(place.runner.store, LINE)["history"] if item["pointer"] == "released"]
    assert history[-1]["by"] == "admin", "who approved it"
    assert len(place.jobs()) == 3, "alpha, beta, and beta on alpha"
    assert place.events("released_model") == [LINE, LINE], "not by the run that released nothing"
    assert {"approval wanted", "gate warned", "deadline missed"} <= {said["what"] for said in place.told}


def test_the_same_files_are_trained_once_and_new_ones_again(place: Place) -> None:
    if "sft.alpha" not in place.ancestors():
        place.land("alpha", "a.jsonl", 100, 60)
        place.announce("alpha")
        place.until(place.new_run(set()), "success")
    jobs, known = place.jobs(), {run["dag_run_id"] for run in place.runs()}
    place.announce("alpha")
    again = place.new_run(known)
    place.until(again, "success")
    assert (place.states(again)["choose_domain"], place.states(again)["train"]) == ("skipped", "skipped")
    assert "was trained before" in place.said(again, "choose_domain")
    assert place.jobs() == jobs

    known.add(again)
    place.land("alpha", "b.jsonl", 200, 2)
    place.announce("alpha")
    few = place.new_run(known)
    place.until(few, "success")
    assert place.states(few)["plan_training"] == "skipped"
    assert "new tokens, of 500 that a retraining is worth" in place.said(few, "plan_training")
    assert place.jobs() == jobs

    known.add(few)
    before = place.released()
    place.land("alpha", "c.jsonl", 210, 40)
    place.announce("alpha")
    more = place.new_run(known)
    place.until(more, "success")
    assert len(place.jobs()) == len(jobs) + 1
    assert read_artifact(place.released()["uri"]).parents[0] == before["hash"]
    assert trained(place.runner.store, look("alpha", str(place.runner.data)))

    updates = len(place.events("released_model"))
    form = {"domain": "alpha", "roll_back": True, "reason": "the new one is worse"}
    back = place.api.trigger(RETRAIN, form, None, "one parameter")
    place.until(back, "success")
    assert (place.states(back)["roll_back"], place.states(back)["train"]) == ("success", "skipped")
    assert place.released() == before
    last = read_registry(place.runner.store, LINE)["history"][-1]
    assert (last["by"], last["why"]) == ("admin", "the new one is worse")
    assert len(place.events("released_model")) == updates + 1, "whoever awaits a released model is told"


def test_a_domain_that_nobody_configured_is_refused(place: Place) -> None:
    known = {run["dag_run_id"] for run in place.runs()}
    place.land("astrology", "a.jsonl", 400, 5)
    place.announce("astrology")
    refused = place.new_run(known)
    assert place.until(refused, "failed") == "failed"
    words = "domain 'astrology' is not configured; there are: alpha, beta"
    assert words in place.said(refused, "choose_domain")
    (found,) = [item for item in place.api.task_instances(RETRAIN, refused) if item["task_id"] == "choose_domain"]
    assert found["try_number"] == 1, "configuration is not tried again"
    deadline = time.monotonic() + 60
    while not any(said["what"] == "failed" and words in said["words"] for said in place.told):
        assert time.monotonic() < deadline, place.told
        time.sleep(0.5)
