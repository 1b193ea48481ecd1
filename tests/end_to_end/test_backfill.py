"""Failed shards, in a landing zone on S3, repaired in each of the three ways that Airflow offers; a budget of them.

Backfilled days meet copies that broke off, a poisoned document, and a store that answers 503. Then one day's red square
is cleared, one is repaired by the form of `repair_shards`, and two are done again by Airflow's own backfill. In each,
exactly the failed shards' signals are computed again, and the corpus is that of a run that nothing disturbed. Each test
needs days of its own, and may run alone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from distributed import Client

from plugins.local.api import Api, ApiError
from tasks.corpus.artifact import read_artifact
from tasks.corpus.manifest import read_manifest
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import join, open_store, read_json, upload_folder
from tasks.curation import steps
from tasks.curation.cluster import _activated
from tasks.curation.repair import read_repairs
from tests.chaos.faulty_proxy import SLOW_DOWN, Plan, faulty_proxy
from tests.chaos.runs import english, tree
from tests.end_to_end.runner import LIMIT, Runner, up

pytestmark = pytest.mark.slow

DAYS = [f"2026-01-{day}" for day in range(10, 16)]
SPARED, CLEARED, REPAIRED, POISONED_DAY, *AGAIN = DAYS
SHARDS, FEW, GROUPS = 200, 20, 2  # of the day with a budget, and of each other day
CURATE, REPAIR = "curate_corpus", "repair_shards"
BUSY = "web/part-199.jsonl"  # its store answers 503, on the first day; the budget allows one shard of 200
BROKEN = {CLEARED: ("012", "013", "018"), REPAIRED: ("011", "019"), AGAIN[0]: ("016",), AGAIN[1]: ("014", "015")}
LEFT_OUT = "No shard failed and was left out."  # what the gate warns of
POISONED = "web/part-002.jsonl"  # on its day: a row that no parser may follow


@dataclass
class Busy(Plan):
    """A store that answers 503 whenever one of these objects is read, whoever asks, until it is well again."""

    objects: set[str] = field(default_factory=set)

    def fault(self, method: str, path: str, has_body: bool) -> str | None:
        return SLOW_DOWN if method == "GET" and path.split("?")[0] in self.objects else None


@dataclass
class Place:
    runner: Runner
    api: Api
    landing: str
    busy: Busy
    root: Path
    first: dict[str, dict[str, Any]] = field(default_factory=dict)  # day → its first run
    whole: dict[tuple[str, str], bytes] = field(default_factory=dict)  # (day, shard) → what is to be there

    @property
    def calm(self) -> Path:
        """Where runs that nothing disturbs lie."""
        return self.root / "calm"

    def output(self, day: str) -> str:
        return join(self.runner.store, "corpus", day)

    def instances(self, run: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
        found = self.api.task_instances(run["dag_id"], run["dag_run_id"])
        return {(item["task_id"], item["map_index"]): item for item in found}

    def computed(self, run: dict[str, Any]) -> int:
        """Shards whose signals a run computed, and did not find done."""
        found = [item for (task, _), item in self.instances(run).items() if task == "compute_signals"]
        results = [self.api.result(item) for item in found if item["state"] == "success"]
        return sum(result["shards"] - len(result["failed"]) - result["reused"] for result in results)

    def log(self, instance: dict[str, Any]) -> str:
        return "\n".join(str(record.get("event")) for record in self.api.log(instance))

    def steps_on_the_page(self, run: dict[str, Any]) -> dict[str, Any]:
        """What the page's *Runs* shows of each step's result."""
        where = f"/athanor/page/api/runs/{run['dag_id']}/{quote(run['dag_run_id'], safe='')}"
        return {step["name"]: step["facts"] for step in self.api._send("GET", where)["steps"]}

    def mend(self, day: str, *names: str) -> None:
        for name in names:
            open_store(join(self.landing, day)).write(name, self.whole[day, name])

    def announced(self, day: str) -> list[str]:
        """The DAGs whose runs announced this day's corpus, in turn."""
        events = self.api._get("/assets/events?limit=100&order_by=timestamp")["asset_events"]
        return [event["source_dag_id"] for event in events if event["extra"].get("snapshot") == day]

    def equals_an_undisturbed_run(self, day: str) -> None:
        assert tree(self.output(day)) == tree(self.calm / "corpus" / day)
        assert read_artifact(self.output(day)).files == read_artifact(str(self.calm / "corpus" / day)).files


def name(number: str) -> str:
    return f"web/part-{number}.jsonl"


def fill(landing: str, day: str, folder: Path) -> None:
    """Shards of three documents; every second shard repeats a document of the one before it."""
    base = 1000 * DAYS.index(day)
    for number in range(SHARDS if day == SPARED else FEW):
        texts = [english(4 * (base + number) + row) for row in (0, 1)] + [english(4 * (base + number - number % 2))]
        write_shard(folder / day / name(f"{number:03}"), [{"text": text} for text in texts])
    upload_folder(folder / day, join(landing, day))


def undisturbed(place: Place, day: str) -> None:
    options: dict[str, Any] = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with Client(**options) as client, _activated(client):
        curate(place, day)


def curate(place: Place, day: str) -> None:
    output, index = str(place.calm / "corpus" / day), str(place.calm / "index")
    groups = steps.inventory(join(place.landing, day), output, day, max_groups=GROUPS)["groups"]
    for group in groups:
        steps.compute_signals(output, group)
    steps.cluster_duplicates(output, index=index)
    for group in groups:
        steps.write_verdicts(output, group)
    steps.publish(output)


def stamps(output: str) -> dict[str, int]:
    """When each file of a corpus was last written, in nanoseconds."""
    root = Path(output)
    files = [path for part in ("signals", "passages", "curated", "verdicts") for path in (root / part).rglob("*")]
    return {path.relative_to(root).as_posix(): path.stat().st_mtime_ns for path in files if path.is_file()}


@pytest.fixture(scope="module")
def place(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Airflow is up, and its landing zone lies behind a proxy."""
    import boto3

    from tasks.corpus import s3_client

    root = tmp_path_factory.mktemp("backfill")
    busy = Busy(seed=0, share=0)
    with pytest.MonkeyPatch.context() as patch, faulty_proxy(s3_server, busy) as proxy:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", s3_server)
        patch.setenv("ATHANOR_MAX_GROUPS", str(GROUPS))
        patch.setenv("ATHANOR_FAILED_BUDGET", str(1 / SHARDS))
        s3_client.client.cache_clear()
        boto3.client("s3").create_bucket(Bucket="backfill")
        landing = "s3://backfill/landing"
        runner = Runner(root / "home", landing)  # type: ignore[arg-type]  # a URI
        open_store(landing).exists("x")  # this process' client is made here, and sees the server itself
        os.environ["AWS_ENDPOINT_URL"] = proxy
        with up(runner) as api:
            yield Place(runner, api, landing, busy, root)
    s3_client.client.cache_clear()


def backfill(api: Api, first: str, last: str, reason: str, behaviour: str = "none") -> None:
    dates = {"from_date": f"{first}T00:00:00Z", "to_date": f"{last}T23:59:59Z"}
    conf = {"dag_run_conf": {"reason": reason}, "reprocess_behavior": behaviour, "max_active_runs": 1}
    known = {run["dag_run_id"] for run in runs_of(api, first)}
    deadline = time.monotonic() + LIMIT
    while {run["dag_run_id"] for run in runs_of(api, first)} == known:
        with suppress(ApiError):
            api.post("/backfills", {"dag_id": CURATE, **dates, **conf})
            return
        # 409: the scheduler closes a backfill only a while after its last run has ended; 500: SQLite was busy
        assert time.monotonic() < deadline, api._get(f"/backfills?dag_id={CURATE}")
        time.sleep(2.0)


def runs_of(api: Api, day: str) -> list[dict[str, Any]]:
    return [run for run in api.runs(CURATE) if run["partition_key"] == day]


def ended(api: Api, dag_id: str, run_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT
    while (run := api.run(dag_id, run_id))["state"] not in ("success", "failed"):
        assert time.monotonic() < deadline, run
        time.sleep(1.0)
    return run


def failed(place: Place, *days: str) -> list[dict[str, Any]]:
    """The first runs of these days, of one backfill; what is wrong becomes so after the inventory, as with a copy that
    is made again and breaks off."""
    if days[0] not in place.first:
        for day in days:
            fill(place.landing, day, place.root / "fill")
            undisturbed(place, day)
        if POISONED_DAY in days:
            poison(place)
        place.api.pause(CURATE, paused=False)
        backfill(place.api, days[0], days[-1], "days late")
        for day in days:
            place.first[day] = spoilt(place, day)
    return [place.first[day] for day in days]


def poison(place: Place) -> None:
    store = open_store(join(place.landing, POISONED_DAY))
    place.whole[POISONED_DAY, POISONED] = store.read(POISONED)
    store.write(POISONED, b"[" * 200_000 + b"\n" + store.read(POISONED).split(b"\n", 1)[1])


def spoilt(place: Place, day: str) -> dict[str, Any]:
    run = await_inventory(place.api, day)
    if day == SPARED:
        place.busy.objects.add(f"/backfill/landing/{day}/{BUSY}")
    store = open_store(join(place.landing, day))
    for number in BROKEN.get(day, ()):
        place.whole[day, name(number)] = store.read(name(number))
        store.write(name(number), place.whole[day, name(number)][:-100])
    return ended(place.api, CURATE, run)


def await_inventory(api: Api, day: str) -> str:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for run in runs_of(api, day):
            found = {item["task_id"]: item["state"] for item in api.task_instances(CURATE, run["dag_run_id"])}
            if found.get("inventory") == "success":
                return run["dag_run_id"]
        time.sleep(0.2)
    raise AssertionError(f"no inventory of {day}")


def is_seen(place: Place, day: str) -> None:
    """Which shards failed, and why, in the grid and on the page; and nothing is announced."""
    assert place.first[day]["state"] == "failed"
    found = place.instances(place.first[day])
    assert found["compute_signals", 0]["state"] == "success"
    red = found["compute_signals", 1]
    assert (red["state"], red["rendered_map_index"], red["try_number"]) == ("failed", "group-1", 1)
    shown = place.api._send("GET", f"/athanor/page/api/shards/{day}?state=failed")
    assert [row["key"] for row in shown["rows"]] == [name(number) for number in BROKEN[day]]
    assert all("changed since the inventory" in failure["message"] for failure in shown["failures"])
    assert all("repair this shard" in failure["remedy"] for failure in shown["failures"])
    assert place.announced(day) == [], "nothing trains on what is not whole"


def test_a_red_square_is_cleared(place: Place) -> None:
    (first,) = failed(place, CLEARED)
    is_seen(place, CLEARED)
    before = place.instances(first)
    place.mend(CLEARED, *map(name, BROKEN[CLEARED]))
    written = stamps(place.output(CLEARED))
    cleared = {"dag_run_id": first["dag_run_id"], "task_ids": [["compute_signals", 1]], "include_downstream": True}
    options = {"only_failed": False, "reset_dag_runs": True, "dry_run": False, "note": "copied again"}
    path = f"/api/v2/dags/{CURATE}/clearTaskInstances"
    place.api._send("POST", path, {**cleared, **options}, again=True)
    run = ended(place.api, CURATE, first["dag_run_id"])
    assert run["state"] == "success"
    after = place.instances(run)
    assert after["compute_signals", 0]["start_date"] == before["compute_signals", 0]["start_date"]
    again = place.api.result(after["compute_signals", 1])
    assert again["shards"] - again["reused"] == len(BROKEN[CLEARED])
    place.equals_an_undisturbed_run(CLEARED)
    now = stamps(place.output(CLEARED))
    assert {path: now[path] for path in written} == written
    assert place.announced(CLEARED) == [CURATE]
    assert after["compute_signals", 1]["note"] == "copied again"
    logged = place.api._get(f"/eventLogs?dag_id={CURATE}&event=post_clear_task_instances")["event_logs"]
    assert {event["owner"] for event in logged} == {"admin"}
    assert "copied again" in logged[0]["extra"]


def repair(place: Place, day: str, form: dict[str, Any]) -> dict[str, Any]:
    place.api.pause(REPAIR, paused=False)
    run = ended(place.api, REPAIR, place.api.trigger(REPAIR, {"snapshot": day, **form}, None, "by its form"))
    assert run["state"] == "success", {key: item["state"] for key, item in place.instances(run).items()}
    return run


def test_repair_shards_by_its_form(place: Place) -> None:
    failed(place, REPAIRED)
    is_seen(place, REPAIRED)
    place.mend(REPAIRED, *map(name, BROKEN[REPAIRED]))
    written = stamps(place.output(REPAIRED))
    run = repair(place, REPAIRED, {"groups": ["group-1"], "pattern": "web/part-01*", "reason": "copied again"})
    assert place.computed(run) == len(BROKEN[REPAIRED])
    now = stamps(place.output(REPAIRED))
    assert {path: now[path] for path in written} == written
    (record,) = read_repairs(place.output(REPAIRED))
    facts = (record["by"], record["reason"], record["shards"], record["computed"])
    assert facts == ("admin", "copied again", [name(number) for number in BROKEN[REPAIRED]], 2)
    place.equals_an_undisturbed_run(REPAIRED)
    assert place.announced(REPAIRED) == [REPAIR]


def test_a_poisoned_document_is_mended_by_a_pattern(place: Place) -> None:
    """Its row alone is quarantined, and the run goes on; the mended file is named by its path."""
    (run,) = failed(place, POISONED_DAY)
    assert run["state"] == "success"
    assert read_json(join(place.output(POISONED_DAY), "report.json"))["quarantined"] == 1
    place.mend(POISONED_DAY, POISONED)
    run = repair(place, POISONED_DAY, {"pattern": POISONED, "only_failed": False, "reason": "no poison any more"})
    assert place.computed(run) == 1
    (record,) = read_repairs(place.output(POISONED_DAY))
    assert (record["replaced"], record["reason"]) == ([POISONED], "no poison any more")
    place.equals_an_undisturbed_run(POISONED_DAY)
    assert place.announced(POISONED_DAY) == [CURATE, REPAIR]


def test_a_range_of_dates_is_done_again(place: Place) -> None:
    failed(place, *AGAIN)
    for day in AGAIN:
        is_seen(place, day)
        place.mend(day, *map(name, BROKEN[day]))
    written = {day: stamps(place.output(day)) for day in AGAIN}
    backfill(place.api, AGAIN[0], AGAIN[-1], "copied again", "failed")
    for day in AGAIN:
        deadline = time.monotonic() + LIMIT
        before = place.first[day]["dag_run_id"]
        while not (later := [run for run in runs_of(place.api, day) if run["dag_run_id"] != before]):
            assert time.monotonic() < deadline, day
            time.sleep(1.0)
        run = ended(place.api, CURATE, later[0]["dag_run_id"])
        assert run["state"] == "success"
        assert place.computed(run) == len(BROKEN[day])
        place.equals_an_undisturbed_run(day)
        now = stamps(place.output(day))
        assert {path: now[path] for path in written[day]} == written[day]
        assert place.announced(day) == [CURATE]
        assert (run["triggering_user_name"], run["conf"]["reason"]) == ("admin", "copied again")


def test_199_of_200_go_on_and_the_rest_follows(place: Place) -> None:
    (first,) = failed(place, SPARED)
    assert first["state"] == "success"
    busy = place.instances(first)["compute_signals", 1]
    assert busy["try_number"] == 3, "a store that does not answer is asked again, and left out at the last try"
    assert f"{BUSY}: left out, within the budget of failed shards" in place.log(busy)
    published = place.api.result(place.instances(first)["publish", -1])
    assert published["left_out"] == 1
    report = read_json(join(place.output(SPARED), "report.json"))
    assert (report["left_out"], len(report["shards"])) == ([BUSY], SHARDS - 1)
    gate = place.instances(first)["gate", -1]
    assert place.api.result(gate)["verdict"] == "warning"
    assert LEFT_OUT in place.log(gate)
    shown = place.api._send("GET", f"/athanor/page/api/shards/{SPARED}?state=failed")
    assert shown["left_out"] == [BUSY]
    assert ([row["key"] for row in shown["rows"]], shown["failures"][0]["kind"]) == ([BUSY], "StorageError")
    steps = place.steps_on_the_page(first)
    assert (steps["publish"]["left_out"], steps["gate"]["verdict"]) == (1, "warning")
    assert place.announced(SPARED) == [CURATE]

    place.busy.objects.clear()
    before = stamps(place.output(SPARED))
    run = repair(place, SPARED, {"reason": "the store is well again"})
    assert place.computed(run) == 1
    assert LEFT_OUT not in place.log(place.instances(run)["gate", -1])
    record = read_repairs(place.output(SPARED))[0]
    facts = (record["by"], record["reason"], record["shards"], record["computed"])
    assert facts == ("admin", "the store is well again", [BUSY], 1)
    place.equals_an_undisturbed_run(SPARED)
    after = stamps(place.output(SPARED))
    changed = {path for path, when in before.items() if after.get(path) != when}
    twin = next(s.id for s in read_manifest(place.output(SPARED)).shards if s.key == name("198"))
    assert {path for path in changed if path.split("/")[1].split(".")[0] != twin} == set()
    assert place.announced(SPARED) == [CURATE, REPAIR]
