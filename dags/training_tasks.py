"""The tasks of training that train_cascade and retrain_domain share: from what was trained to its gate."""

from typing import Any

from dags import policies
from plugins.operators import EvaluateOperator, GateOperator


def evaluate_and_gate(trained: Any, contract: Any, what: str) -> tuple[EvaluateOperator, GateOperator]:
    """Measure an artifact, and hold its figures against a contract."""
    measured = EvaluateOperator(task_id="evaluate", trained=trained, **policies.EVALUATION)
    figures: Any = measured.output
    gate = GateOperator(
        task_id="gate",
        contract=contract,
        subject=figures["subject"],
        key=figures["hash"],
        doc_md=f"Hold the figures against the contract of {what}; the report is one click away.",
        **policies.GATE,
    )
    return measured, gate
