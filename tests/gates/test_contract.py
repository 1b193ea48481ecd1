"""The contract's model: what is refused before any data is read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.errors import ConfigError
from tasks.gates.contract import load_contract
from tasks.gates.validation import check_types
from tasks.settings import CONTRACTS

NAMES = sorted(path.stem for path in CONTRACTS.glob("*.yaml"))


def small() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "small",
        "title": "Small",
        "description": "A small contract.",
        "reads": {"metrics": "metrics"},
        "frames": {
            "metrics": {
                "subject": "metrics",
                "view": "metrics",
                "title": "Figures",
                "columns": {"loss": "number"},
                "expectations": [
                    {
                        "expectation": "expect_column_values_to_be_between",
                        "kwargs": {"column": "loss", "max_value": 10},
                        "severity": "critical",
                        "meaning": "The loss is small.",
                        "remedy": "Train longer.",
                    }
                ],
            }
        },
    }


def write(folder: Path, contract: dict[str, Any]) -> str:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(contract), encoding="utf-8")
    return str(path)


def test_the_shipped_contracts_load() -> None:
    assert NAMES == [
        "adapt",
        "base",
        "curated",
        "instructions",
        "preferences",
        "pretrain",
        "reward",
        "rlhf",
        "sft",
        "tokens",
    ]
    for name in NAMES:
        contract = load_contract(name)
        check_types(contract)
        for frame in contract.frames.values():
            for expectation in frame.expectations:
                assert expectation.meaning.endswith(".")
                assert expectation.remedy.endswith(".")


def test_a_short_column_is_the_long_one(tmp_path: Path) -> None:
    contract = small()
    short = load_contract(write(tmp_path, contract))
    contract["frames"]["metrics"]["columns"] = {"loss": {"type": "number"}}
    assert load_contract(write(tmp_path, contract)).hash == short.hash


def test_a_changed_threshold_changes_the_hash(tmp_path: Path) -> None:
    contract = small()
    before = load_contract(write(tmp_path, contract)).hash
    contract["frames"]["metrics"]["expectations"][0]["kwargs"]["max_value"] = 11
    assert load_contract(write(tmp_path, contract)).hash != before


def test_unknown_keys_name_the_nearest_known_one(tmp_path: Path) -> None:
    contract = small()
    contract["frames"]["metrics"]["expectations"][0]["severty"] = "critical"
    with pytest.raises(ConfigError, match=r"severty.*did you mean 'severity'"):
        load_contract(write(tmp_path, contract))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(schema_version=2), "schema_version"),
        (lambda c: c.update(name="other"), "expected 'small'"),
        (lambda c: c["frames"]["metrics"].update(subject="corpus"), "reads 'corpus'"),
        (lambda c: c["frames"]["metrics"].update(view="rows"), "no view 'rows'; there are metrics"),
        (lambda c: c["frames"]["metrics"].update(identify=["los"]), "column 'los' is used"),
        (lambda c: c["frames"]["metrics"].update(expectations=[]), "expectations"),
        (lambda c: c["frames"]["metrics"]["columns"].update(loss="float"), "columns.loss"),
        (lambda c: c["frames"]["metrics"]["expectations"][0].update(severity="info"), "severity"),
        (lambda c: c["frames"]["metrics"]["expectations"][0]["kwargs"].update(column="los"), "column 'los' is used"),
        (lambda c: c["frames"]["metrics"]["expectations"][0].pop("remedy"), "remedy"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    contract = small()
    change(contract)
    with pytest.raises(ConfigError, match=words):
        load_contract(write(tmp_path, contract))


def test_a_missing_contract_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'curated'"):
        load_contract("curatd")


def test_an_expectation_unknown_to_great_expectations_names_the_nearest(tmp_path: Path) -> None:
    contract = small()
    contract["frames"]["metrics"]["expectations"][0]["expectation"] = "expect_column_values_to_be_betwen"
    with pytest.raises(ConfigError, match="did you mean 'expect_column_values_to_be_between'"):
        check_types(load_contract(write(tmp_path, contract)))


def test_an_argument_unknown_to_great_expectations_is_named(tmp_path: Path) -> None:
    contract = small()
    contract["frames"]["metrics"]["expectations"][0]["kwargs"]["maximum"] = 3
    with pytest.raises(ConfigError, match="maximum"):
        check_types(load_contract(write(tmp_path, contract)))
