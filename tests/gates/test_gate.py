"""The gate as a whole: what it writes, what it refuses, and what must never leave it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from typer.testing import CliRunner

from tasks.corpus.storage import join, read_bytes, read_json, upload_folder, write_json
from tasks.errors import ConfigError
from tasks.gates.cli import register
from tasks.gates.gate import GateRefused, require, run_gate
from tasks.settings import REPOSITORY

TUNED = {
    "heldout_loss": 2.0,
    "parent_heldout_loss": 3.0,
    "gain_low": 0.8,
    "heldout_records": 50,
    "parent_general_loss": 4.0,
    "general_loss": 4.0,
    "general_loss_rise": 0.0,
    "harmful_refused": 1.0,
    "harmless_refused": 0.0,
    "parent_harmful_refused": 1.0,
    "parent_harmless_refused": 0.0,
    "refusals_lost": 0.0,
    "proposal": "keep the mixture",
}


def page(report: Path, name: str = "report.html") -> str:
    return (report / name).read_text(encoding="utf-8")


def test_a_sound_corpus_passes(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    require(result)
    assert (result.passed, result.verdict, result.failures) == (True, "passed", [])
    saved = orjson.loads((tmp_path / "gate" / "result.json").read_bytes())
    assert saved["verdict"] == "passed"
    assert saved["schema_version"] == 1
    assert saved["contract_hash"] == result.contract_hash
    assert ">Passed<" in page(tmp_path / "gate")


def test_a_refusal_says_what_why_and_what_to_do(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    corpus["report"]["dropped"] -= 2
    corpus["documents"]["b"][3].update(doc_id="not hex", text=" \n")
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    assert not result.passed
    with pytest.raises(GateRefused, match=r"read = kept \+ dropped \+ quarantined.*difference = 2.*report\.html"):
        require(result)
    html = page(tmp_path / "gate")
    for words in (">Refused<", "difference = 2", "Do not use this corpus", "not hex", "What to do", "(blank)"):
        assert words in html


def test_warnings_alone_let_pass(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    corpus["report"]["unreadable_bytes"] = 1
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    require(result)
    assert (result.passed, result.verdict) == (True, "warning")
    assert [outcome.severity for outcome in result.failures] == ["warning"]
    assert ">Passed with warnings<" in page(tmp_path / "gate")


def test_an_empty_corpus_is_refused(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    corpus["documents"] = {"a": []}
    corpus["report"].update(read=0, kept=0, dropped=0, quarantined=0, shards=[])
    corpus["report"]["bytes"] = dict.fromkeys(corpus["report"]["bytes"], 0)
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    assert result.verdict == "refused"
    assert {outcome.frame for outcome in result.failures if outcome.observed == "no rows"} == {"shards", "documents"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("artifact.json", None, "no artifact here"),
        ("report.json", None, "missing"),
        ("report.json", b"[]", "expected a JSON object"),
        ("report.json", b"{half", "not valid JSON"),
        ("curated/b.parquet", b"PAR1 no parquet PAR1", "not readable as Parquet"),
    ],
)
def test_a_subject_that_cannot_be_read_is_refused_and_shown(
    corpus: Any, write_corpus: Any, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    uri = write_corpus(corpus)
    if content is None:
        (Path(uri) / name).unlink()
    else:
        (Path(uri) / name).write_bytes(content)
    result = run_gate("curated", {"corpus": uri}, str(tmp_path / "gate"))
    assert result.verdict == "refused"
    assert words in result.failures[0].observed
    assert words in page(tmp_path / "gate")


def test_a_report_without_a_count_is_refused(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    del corpus["report"]["quarantined"]
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    assert result.verdict == "refused"
    assert any("column 'quarantined' is there" in outcome.meaning.lower() for outcome in result.failures)


def test_metrics_that_are_missing_or_no_number_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "metrics.json")
    losses = {"heldout_loss": 4.0, "heldout_loss_high": 4.2, "unigram_loss": 6.0}
    sound = {**losses, "perplexity": 55.0, "tokens": 100_000, "heldout_documents": 60}
    for damage in ({"heldout_loss": None}, {"unigram_loss": "low"}, {"tokens": 1.5}):
        write_json(uri, {**sound, **damage})
        assert run_gate("pretrain", {"metrics": uri}, str(tmp_path / "gate")).verdict == "refused"
    write_json(uri, sound)
    assert run_gate("pretrain", {"metrics": uri}, str(tmp_path / "gate")).verdict == "passed"
    Path(uri).unlink()
    assert run_gate("pretrain", {"metrics": uri}, str(tmp_path / "gate")).verdict == "refused"


def test_a_subject_that_is_not_named_is_an_error_and_one_too_many_is_not(tmp_path: Path) -> None:
    uri = str(tmp_path / "metrics.json")
    write_json(uri, TUNED)
    with pytest.raises(ConfigError, match=r"not given: metrics \(given: tokens\)"):
        run_gate("sft", {"tokens": uri}, str(tmp_path / "gate"))
    assert run_gate("sft", {"metrics": uri, "tokens": "nowhere"}, str(tmp_path / "gate")).passed


def test_the_same_input_gives_the_same_bytes(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    corpus["documents"]["b"][3].update(text="\x00" * 9, language_score=2.0)
    uri = write_corpus(corpus)
    for folder in ("one", "two"):
        run_gate("curated", {"corpus": uri}, str(tmp_path / folder))
    for name in ("result.json", "report.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_corpus_on_s3_gets_its_report_there(corpus: Any, write_corpus: Any, bucket: str) -> None:
    here = write_corpus(corpus)
    upload_folder(Path(here), join(bucket, "corpus"))
    result = run_gate("curated", {"corpus": join(bucket, "corpus")}, join(bucket, "gate"))
    assert result.verdict == "passed"
    assert read_json(join(bucket, "gate", "result.json"))["identities"] == result.identities
    assert read_bytes(join(bucket, "gate", "report.html")).startswith(b"<!doctype html>")


HOSTILE = "<script>alert(1)</script><img src=https://evil.example/x> jane.doe@example.org, +49 170 1234567 \x00 "


def test_the_report_opens_offline_and_runs_nothing(corpus: Any, write_corpus: Any, tmp_path: Path) -> None:
    corpus["documents"]["b"][0]["text"] = HOSTILE + corpus["documents"]["b"][0]["text"]
    corpus["documents"]["b"][1]["doc_id"] = HOSTILE
    run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    html = page(tmp_path / "gate")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    docs = page(tmp_path / "gate", "data_docs.html")
    assert "‹script›alert(1)‹/script›" in docs and "[e-mail]" in docs
    assert "jane.doe" not in docs and "1234567" not in docs
    for shown in (html, docs):
        assert not re.search(r"<(script|img|link|iframe|object|embed|form|base)\b", shown, re.IGNORECASE)
        assert not re.search(r"\b(src|href|srcset|action|on\w+)\s*=\s*[\"']", shown)
        assert "url(" not in shown
        assert "@import" not in shown
        assert "default-src 'none'" in shown
        assert "prefers-color-scheme: dark" in shown


def test_personal_data_leaves_neither_in_the_page_nor_in_the_result(
    corpus: Any, write_corpus: Any, tmp_path: Path
) -> None:
    corpus["documents"]["b"][0]["text"] = HOSTILE
    run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    for name in ("report.html", "result.json"):
        text = (tmp_path / "gate" / name).read_text(encoding="utf-8")
        assert "jane.doe" not in text
        assert "1234567" not in text
        assert "[e-mail]" in text
        assert "[number]" in text


def test_data_docs_say_of_every_expectation_what_great_expectations_found(
    corpus: Any, write_corpus: Any, tmp_path: Path
) -> None:
    corpus["report"]["dropped"] -= 2
    result = run_gate("curated", {"corpus": write_corpus(corpus)}, str(tmp_path / "gate"))
    docs = page(tmp_path / "gate", "data_docs.html")
    asked = [outcome for outcome in result.outcomes if not outcome.structure]
    failed = [outcome for outcome in asked if not outcome.success]
    assert failed and docs.count("text-danger") >= len(failed)
    assert docs.count("text-success") + docs.count("text-danger") >= len(asked)
    columns = {outcome.kwargs["column"] for outcome in asked if "column" in outcome.kwargs}
    assert columns <= set(re.findall(r"\w+", docs))
    again = run_gate("curated", {"corpus": str(tmp_path / "nothing")}, str(tmp_path / "unreadable"))
    assert not again.passed and not (tmp_path / "unreadable" / "data_docs.html").exists(), "nothing was validated"


def test_importing_the_gate_is_light() -> None:
    heavy = "pandas", "great_expectations", "pyarrow", "jinja2", "numpy"
    code = f"import sys, tasks.gates.gate, tasks.gates.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("damage", "status", "words"),
    [
        ({}, 0, "passed: Instruction-tuned model. All 12 checks hold."),
        ({"heldout_loss": 8.5, "parent_heldout_loss": 9.0}, 0, "warning: not met: Answers are predicted"),
        ({"heldout_loss": 3.5}, 3, "critical: not met: Tuning made the model better"),
    ],
)
def test_the_command_says_the_verdict_in_words(
    tmp_path: Path, damage: dict[str, float], status: int, words: str
) -> None:
    uri = tmp_path / "metrics.json"
    write_json(str(uri), {**TUNED, **damage})
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)  # typer makes a group of two commands and none of one
    result = CliRunner().invoke(app, ["gate", "sft", f"metrics={uri}", "--report", str(tmp_path / "gate")])
    assert result.exit_code == status, result.output
    assert words in result.output
    assert "report.html" in result.output


def test_the_command_wants_names_with_uris(tmp_path: Path) -> None:
    app = typer.Typer()
    register(app)
    app.command("other")(lambda: None)
    result = CliRunner().invoke(app, ["gate", "sft", "metrics", "--report", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "NAME=URI" in str(result.exception)
