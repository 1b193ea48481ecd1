"""What `retrain_domain` and `watch_domains` decide: what is announced, when to start again, whom to ask."""

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DagRunTriggerException

from plugins import retraining
from plugins.retraining import MOST_REBASES, StartAgainOperator
from tasks.corpus.shards import write_shard
from tasks.settings import Settings


def start_again(moved: str, rebases: int, reason: str | None = None) -> None:
    operator = StartAgainOperator(
        task_id="rebase", trigger_dag_id="retrain_domain", outcome={"moved": moved}, chosen={"domain": "legal"}
    )
    context: Any = {"params": {"rebases": rebases, "reason": reason, "again": True}}
    operator.execute(context)


def test_a_retraining_that_was_overtaken_starts_again_with_what_was_asked() -> None:
    with pytest.raises(DagRunTriggerException) as asked:
        start_again("b was released", 1, "new laws")
    assert asked.value.conf == {
        "domain": "legal",
        "reason": "new laws; rebase: b was released",
        "again": True,
        "rebases": 2,
    }


def test_three_times_at_most() -> None:
    with pytest.raises(AirflowFailException, match=r"b was released\. It was rebased 3 times.* nothing was released"):
        start_again("b was released", MOST_REBASES)


def test_nothing_starts_again_when_it_was_released() -> None:
    with pytest.raises(AirflowSkipException):
        start_again("", 0)


def test_a_delivery_is_announced_until_that_is_put_down(tmp_path: Path) -> None:
    config = Settings(home=tmp_path / "home", data=str(tmp_path / "landing"))
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    for domain in ("legal", "astrology"):
        write_shard(tmp_path / "landing" / "domains" / domain / "a.jsonl", [{"messages": said}])
    found = retraining.new_deliveries(config)
    assert list(found) == ["legal"]
    assert retraining.new_deliveries(config) == found, "the announcement may have failed"
    retraining.remember(found, config)
    assert retraining.new_deliveries(config) == {}
