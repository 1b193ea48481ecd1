"""The Athanor page in a real browser, over real `airflow standalone`: every tab, by mouse and by keyboard.

A snapshot is curated and a model trained through Airflow while the page is watched; another snapshot has three shards
that failed; a third has 100,000. Screenshots are left in the folder that SCREENSHOTS names, if it does.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugins.local.api import Api
from tasks.corpus.manifest import Manifest, read_manifest
from tasks.corpus.registry import promote, read_registry
from tasks.corpus.shards import write_shard
from tasks.corpus.storage import read_json, write_json
from tasks.curation import steps
from tasks.curation.cluster import dask_client
from tasks.curation.config import CurationConfig, load_curation
from tasks.curation.failures import keep_record
from tasks.curation.signal_files import signals_key
from tasks.errors import StorageError
from tests.chromium import browser as chromium
from tests.curation.test_steps import english
from tests.end_to_end.runner import LIMIT, SNAPSHOT, Runner, small_landing

pytestmark = pytest.mark.slow

TABS = ("Runs", "Shards", "Training", "Gates", "Lineage", "Why", "Releases")
FAILED, MANY = "2026-01-16", "2020-02-02"
BAD = ("web/part-017.jsonl", "web/part-042.jsonl", "web/part-050.jsonl")
GREEN, GROUPS = 60, 4


@dataclass
class Place:
    """Airflow that is up, its landing zone and its store."""

    runner: Runner
    api: Api
    url: str

    @property
    def secret(self) -> str:
        return json.loads((self.runner.home / "airflow" / "passwords.json").read_text())["admin"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("browser")
    runner = Runner(root / "home", small_landing(root / "landing"))
    with dask_client(1):  # one for all steps
        failed_shards(Path(runner.data) / FAILED, Path(runner.store) / "corpus" / FAILED)
    up = runner.start("up")
    printed = runner.output(up)
    assert up.returncode == 0, printed
    state = json.loads((runner.home / "airflow" / "guardian.json").read_text())
    runner.seen |= {psutil.Process(state["pid"]), *psutil.Process(state["pid"]).children(recursive=True)}
    there = Place(runner, Api(state["url"], "admin", ""), state["url"])
    there.api = Api(state["url"], "admin", there.secret)
    yield there
    runner.output(runner.start("down"))
    for process in runner.seen:
        if process.is_running():
            process.kill()


def failed_shards(landing: Path, output: Path) -> None:
    """A snapshot of 60 shards, three of which could not be written; published without them."""
    for number in range(GREEN):
        rows = [{"text": english(3 * number + row)} for row in range(3)]
        write_shard(landing / "web" / f"part-{number:03}.jsonl", rows)
    groups = steps.inventory(str(landing), str(output), landing.name, max_groups=GROUPS)["groups"]
    manifest = read_manifest(str(output))
    config = CurationConfig.model_validate(manifest.curation)
    for shard in manifest.shards:
        if shard.key in BAD:  # a folder where the file must go: the store refuses just this write
            (output / "signals" / f"{signals_key(shard, config)}.parquet").mkdir(parents=True)
    for group in groups:
        steps.compute_signals(str(output), group, workers=1, budget=0.1, last_try=True)
    steps.cluster_duplicates(str(output), workers=1, budget=0.1)
    for group in groups:
        steps.write_verdicts(str(output), group, workers=1)
    steps.publish(str(output))


def until(found: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """What `found` returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.3)
    return value


def ended(api: Api, dag_id: str) -> dict[str, Any]:
    """The DAG's newest run, once there is one and it has ended."""
    return until(lambda: (runs := api.runs(dag_id)) and runs[0]["state"] in ("success", "failed") and runs[0])


@pytest.fixture(scope="module")
def browser(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, logged in through Airflow's own form."""
    with chromium(tmp_path_factory.mktemp("downloads"), (1400, 1000)) as chrome:
        chrome.set_page_load_timeout(120)
        chrome.get(place.url)
        until(lambda: chrome.find_elements("name", "username"), 180)[0].send_keys("admin")
        chrome.find_element("name", "password").send_keys(place.secret)
        chrome.find_element("css selector", "button[type=submit]").click()
        until(lambda: any(cookie["name"] == "_token" for cookie in chrome.get_cookies()), 120)
        yield chrome


@pytest.fixture(scope="module")
def watched(place: Place, browser: Any) -> list[str]:
    """The main job, started as a person would; what the Training tab said while its jobs ran."""
    place.api.pause("curate_corpus", paused=False)
    place.api.pause("train_cascade_micro", paused=False)
    place.api.trigger("curate_corpus", {"snapshot": SNAPSHOT}, None, "watched in a browser")
    browser.get(f"{place.url}/athanor/page/#/training")
    seen: list[str] = []

    def told() -> bool:
        if "running" in text(browser) and (not seen or seen[-1] != text(browser)):
            seen.append(text(browser))
            if browser.find_elements("css selector", "svg .curve"):
                shot(browser, "training-live")
        runs = place.api.runs("train_cascade_micro")
        return bool(runs) and runs[0]["state"] in ("success", "failed")

    until(told)
    return seen


@pytest.fixture(scope="module")
def trained(place: Place, watched: list[str]) -> str:
    """URI of the candidate that came out."""
    assert ended(place.api, "train_cascade_micro")["state"] == "success"
    return read_registry(place.runner.store, "micro")["candidate"]["uri"]


def text(browser: Any) -> str:
    return browser.find_element("css selector", "main").text


def shot(browser: Any, name: str) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def arrive(browser: Any, tab: str) -> None:
    """Wait until the tab is shown, with what the server says of it."""
    until(lambda: browser.title == f"{tab} · Athanor", 30)
    until(lambda: tab == "Why" or browser.find_element("id", "live").text == "live", 60)


def button(browser: Any, words: str) -> Any:
    return until(lambda: browser.find_elements("xpath", f"//button[normalize-space()='{words}']"), 60)[0]


def test_training_is_seen_while_it_runs(watched: list[str]) -> None:
    assert len(watched) > 1, "the page changed by itself while a job ran"
    assert any("/60" in words for words in watched), "steps of the pretraining stage"


def test_every_tab_by_mouse_and_keyboard_light_and_dark(place: Place, trained: str, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get_log("browser")
    browser.get(f"{place.url}/athanor/page/")
    for mode in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        for tab in TABS:
            link = browser.find_element("link text", tab)
            if mode == "light":
                link.click()
            else:
                link.send_keys(Keys.ENTER)
            arrive(browser, tab)
            until(lambda: text(browser), 60)
            time.sleep(1.0)
            assert "No " not in text(browser).split("\n")[1:2], text(browser)
            shot(browser, f"{tab.lower()}-{mode}")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_first_tab_stops_are_seen(place: Place, browser: Any) -> None:
    """Whoever has no mouse sees where they are: what has the focus is outlined, in the order of the page."""
    from selenium.webdriver.common.keys import Keys

    browser.get("about:blank")
    browser.get(f"{place.url}/athanor/page/#/shards/{FAILED}")
    until(lambda: "3 shards failed" in text(browser), 60)
    stops = []
    for _ in range(12):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        here = browser.switch_to.active_element
        stops.append(here.text or here.get_attribute("aria-label"))
        assert here.value_of_css_property("outline-style") != "none", stops
    assert set(TABS) <= set(stops), stops
    shot(browser, "keyboard-focus")


def test_from_the_red_square_to_the_filled_form(place: Place, browser: Any) -> None:
    """Filter, move by arrow keys, read what to do; the form that starts the repair is filled in and sent."""
    browser.get(f"{place.url}/athanor/page/#/shards/{FAILED}")
    until(lambda: "published without 3 of 60 shards" in text(browser), 60)
    browser.find_element("css selector", "button[data-focus=failed]").click()
    until(lambda: "1–3 of 3 shards" in text(browser), 30)
    browser.find_element("css selector", "canvas").send_keys("\ue014\ue014\ue007")  # right, right, Enter: the third
    until(lambda: f"{BAD[2]}\nFailed" in text(browser), 30)
    assert "cannot be written" in text(browser)
    shot(browser, "failed-shard")
    browser.find_elements("xpath", "//button[text()='Repair …']")[-1].click()
    dialog = until(lambda: browser.find_elements("css selector", "dialog[open]"), 10)[0]
    filled = [field.get_attribute("value") for field in dialog.find_elements("css selector", "input[type=text]")]
    assert filled[1] == BAD[2]
    dialog.find_element("css selector", "textarea").send_keys("the disk was full; there is room again")
    shot(browser, "repair-form")
    dialog.find_element("css selector", "button[type=submit]").click()
    until(lambda: "The repair was started" in dialog.text, 60)
    (run,) = until(lambda: place.api.runs("repair_shards"), 30)  # the DAG is paused: it waits, and says what for
    assert (run["triggering_user_name"], run["conf"]) == (
        "admin",
        {
            "snapshot": FAILED,
            "groups": [filled[0]],
            "pattern": BAD[2],
            "only_failed": True,
            "reason": "the disk was full; there is room again",
        },
    )
    place.api.fail_run("repair_shards", run["dag_run_id"], "the form was looked at")


def test_released_traced_to_its_shards_and_rolled_back(place: Place, trained: str, browser: Any) -> None:
    store = place.runner.store
    earlier = read_registry(store, "micro")["candidate"]["hash"]
    for number, why in enumerate(("it holds what the gates ask", "the same again")):
        browser.get("about:blank")
        browser.get(f"{place.url}/athanor/page/#/releases")
        button(browser, "Promote …").click()
        decide(browser, why)
        until(lambda: read_registry(store, "micro")["released"], 60)
        if number == 0:  # another candidate, from the same lineage: the tuned model's parent
            parent = next(item["uri"] for item in lineage(place) if item.get("stage") == "pretrain")
            promote(store, "micro", parent, to="candidate")
    until(lambda: read_registry(store, "micro")["released"]["hash"] != earlier, 60)
    browser.get("about:blank")
    browser.get(f"{place.url}/athanor/page/#/releases")
    button(browser, "Roll back …").click()
    decide(browser, "it forgot to answer")
    until(lambda: read_registry(store, "micro")["released"]["hash"] == earlier, 60)
    shot(browser, "releases-decided")

    browser.get(f"{place.url}/athanor/page/#/lineage/micro/released")
    until(lambda: "corpus" in text(browser), 60)
    assert all(stage in text(browser) for stage in ("sft", "pretrain", "tokenizer"))
    for summary in browser.find_elements("css selector", "summary"):
        summary.click()
    shards = {item["shard"] for item in read_json(f"{store}/corpus/{SNAPSHOT}/report.json")["shards"]}
    assert any(shard in text(browser) for shard in shards), text(browser)
    shot(browser, "lineage-shards")


def lineage(place: Place) -> list[dict[str, Any]]:
    from tasks.corpus.lineage import walk

    found = walk(read_registry(place.runner.store, "micro")["candidate"]["uri"])
    return [{"uri": item.uri, "stage": item.artifact.stage} for item in found if item.artifact]


def decide(browser: Any, why: str) -> None:
    dialog = until(lambda: browser.find_elements("css selector", "dialog[open]"), 30)[0]
    dialog.find_element("css selector", "textarea").send_keys(why)
    dialog.find_element("css selector", "button[type=submit]").click()
    until(lambda: not browser.find_elements("css selector", "dialog[open]"), 60)


def test_inside_airflow_a_link_leads_to_the_grid(place: Place, trained: str, browser: Any) -> None:
    browser.get(f"{place.url}/plugin/athanor")
    frame = until(lambda: browser.find_elements("css selector", "iframe[title=Athanor]"), 60)[0]
    browser.switch_to.frame(frame)
    until(lambda: "curate_corpus" in text(browser), 60)
    browser.find_elements("link text", "in Airflow's grid")[-1].click()
    browser.switch_to.default_content()
    until(lambda: "/dags/curate_corpus/runs/" in browser.current_url, 60)


def many_shards(store: str, count: int) -> None:
    """A published snapshot of so many shards, as far as the page reads it: manifest, report, and a few failures."""
    out = Path(store) / "corpus" / MANY
    (out / "failures").mkdir(parents=True)
    shards, rows = [], []
    for number in range(count):
        checksum = hashlib.blake2b(str(number).encode(), digest_size=16).hexdigest()
        key, group = f"web/part-{number:06}.jsonl.zst", f"group-{number * 256 // count:03}"
        shards.append({"id": checksum[:16], "key": key, "size": 2 * 10**8, "checksum": checksum, "group": group})
        kept, bad = 10_000 + number % 30_000, int(number % 97 == 0)
        counts = {"read": 60_000, "kept": kept, "dropped": 60_000 - kept - bad, "quarantined": bad, "unreadable": 0}
        rows.append({"shard": key, **counts})
    curation = load_curation("default").model_dump()
    write_json(str(out / "manifest.json"), {"snapshot": MANY, "landing": "/", "curation": curation, "shards": shards})
    write_json(str(out / "report.json"), {"reasons": {"gopher_words": {"documents": 7}}, "shards": rows})
    write_json(str(out / "artifact.json"), {})
    failed = Manifest.model_validate(read_json(str(out / "manifest.json"))).shards[:: count // 5]
    keep_record(str(out), "signals", [], [(shard, StorageError("the store answered 503")) for shard in failed])


def test_a_hundred_thousand_shards(place: Place, browser: Any) -> None:
    """Prints what was measured: first useful paint cold and warm, and the memory of page and server."""
    many_shards(place.runner.store, 100_000)
    before = served(place)
    found = []
    for visit in ("cold", "warm"):
        browser.get("about:blank")
        began = time.monotonic()
        browser.get(f"{place.url}/athanor/page/#/shards/{MANY}")
        until(lambda: "1–100 of 100,000 shards" in text(browser), 60)
        found.append((visit, time.monotonic() - began))
    assert "5 shards failed" in text(browser)
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    heap = browser.execute_script("return performance.memory.usedJSHeapSize") / 1e6
    canvas = browser.find_element("css selector", "canvas").size
    seconds = ", ".join(f"{visit} {taken:.2f} s" for visit, taken in found)
    grown = served(place) - before
    print(f"\n100,000 shards: first useful paint {seconds}; page {heap:.1f} MB, server +{grown:.0f} MB; board {canvas}")
    shot(browser, "hundred-thousand")
    assert dict(found)["cold"] < 60 and dict(found)["warm"] < 15, "even on a busy machine"
    assert heap < 50 and grown < 500 and canvas["height"] < 600


def served(place: Place) -> float:
    """Megabytes that the API server's processes hold."""
    state = json.loads((place.runner.home / "airflow" / "guardian.json").read_text())
    below = psutil.Process(state["pid"]).children(recursive=True)
    servers = [process for process in below if "api_server" in " ".join(process.cmdline()).replace("-", "_")]
    assert servers
    return sum(process.memory_info().rss for process in servers) / 1e6


def test_without_a_login_there_is_nothing(place: Place, browser: Any) -> None:
    browser.delete_all_cookies()
    browser.get(f"{place.url}/athanor/page/")
    assert "Not authenticated" in browser.page_source and "Shards" not in browser.page_source
