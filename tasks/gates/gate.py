"""Gates: a subject held against a contract, a verdict, a report.

A critical failure refuses, and so does whatever could not be checked; failed warnings alone give a warning. What
follows a refused gate must not run: `require` raises, and nobody retries, because the data has not changed.
"""

from collections.abc import Mapping
from typing import Literal

from tasks.corpus.storage import join, open_store, to_json
from tasks.errors import AthanorError, ConfigError, DataError
from tasks.gates import data_docs
from tasks.gates.contract import Contract, load_contract
from tasks.gates.frames import Subject, read_subject
from tasks.gates.report import render
from tasks.gates.validation import Outcome, check_types, unreadable, validate_frame
from tasks.settings import StrictModel

SCHEMA_VERSION: Literal[1] = 1
RESULT, REPORT, DATA_DOCS = "result.json", "report.html", "data_docs.html"
Verdict = Literal["passed", "warning", "refused"]


class GateRefused(AthanorError):
    """A gate's critical expectations failed; the data or the contract must change before a new try."""


class GateResult(StrictModel):
    """What a gate decided, and every expectation's outcome. `report` is the folder of the files written."""

    schema_version: Literal[1] = SCHEMA_VERSION
    contract: str
    contract_hash: str
    title: str
    subjects: dict[str, str]
    identities: dict[str, str]
    verdict: Verdict
    outcomes: list[Outcome]
    report: str

    @property
    def passed(self) -> bool:
        """Whether what follows may run; true with warnings too."""
        return self.verdict != "refused"

    @property
    def failures(self) -> list[Outcome]:
        """Failed expectations, critical ones first."""
        failed = [outcome for outcome in self.outcomes if not outcome.success]
        return sorted(failed, key=lambda outcome: outcome.severity != "critical")


def run_gate(contract: str, subject: Mapping[str, str], report: str) -> GateResult:
    """Hold the subjects against `data_contracts/<contract>.yaml` and write the report.

    :param contract: a contract's name, or a path to one.
    :param subject: URI of each subject that the contract reads, by name; others are not looked at.
    :param report: URI of the folder for `report.html`, `result.json`, and Great Expectations' pages where it was asked.

    The same subjects and contract give the same result.json, byte for byte. Raises ConfigError for a contract that
    cannot be used and for a subject that was not named; StorageError when a store does not answer. A subject that is
    missing, empty or unreadable is no error but a refusal.
    """
    terms = load_contract(contract)
    check_types(terms)
    unnamed = [name for name in terms.reads if not subject.get(name)]
    if unnamed:
        raise ConfigError(
            f"contract '{terms.name}' reads {', '.join(terms.reads)}; not given: {', '.join(unnamed)} "
            f"(given: {', '.join(subject) or 'nothing'})"
        )
    uris = {name: subject[name] for name in terms.reads}
    outcomes, identities, validated = _hold(terms, uris)
    result = GateResult(
        contract=terms.name,
        contract_hash=terms.hash,
        title=terms.title,
        subjects=uris,
        identities=identities,
        verdict=decide(outcomes),
        outcomes=outcomes,
        report=report,
    )
    store = open_store(report)
    store.write(REPORT, render(terms, result).encode("utf-8"))
    if validated:
        store.write(DATA_DOCS, data_docs.render(terms.title, validated).encode("utf-8"))
    store.write(RESULT, to_json(result.model_dump(mode="json", exclude={"report"})))  # last: it says all is written
    return result


def decide(outcomes: list[Outcome]) -> Verdict:
    """The verdict by severity. No outcome at all is a refusal: nothing was checked."""
    failed = {outcome.severity for outcome in outcomes if not outcome.success}
    if "critical" in failed or not outcomes:
        return "refused"
    return "warning" if failed else "passed"


def require(result: GateResult) -> None:
    """Raise GateRefused, with every critical failure in words, when the gate refused."""
    if not result.passed:
        lines = [words(outcome) for outcome in result.failures if outcome.severity == "critical"]
        raise GateRefused(
            f"gate '{result.contract}' refused: {'; '.join(lines)} (report: {join(result.report, REPORT)})"
        )


def words(outcome: Outcome) -> str:
    """A failed expectation in one line: what should hold, what was found, what to do."""
    return f"not met: {outcome.meaning} Expected {outcome.expected}; found {outcome.observed}. {outcome.remedy}"


def _hold(terms: Contract, uris: dict[str, str]) -> tuple[list[Outcome], dict[str, str], list[data_docs.Validated]]:
    outcomes: list[Outcome] = []
    validated: list[data_docs.Validated] = []
    subjects: dict[str, Subject] = {}
    for name, form in terms.reads.items():
        try:
            subjects[name] = read_subject(form, uris[name])
        except DataError as error:
            outcomes.append(unreadable(name, form, str(error)))
    for name, frame in terms.frames.items():
        if frame.subject in subjects:
            records = subjects[frame.subject].views[frame.view]
            outcomes += validate_frame(name, frame, records, validated)
    return outcomes, {name: subject.identity for name, subject in subjects.items()}, validated
