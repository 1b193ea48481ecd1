"""One parse of the DAG folder in a process of its own, as Airflow's DAG processor sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PARSE = """
import json, sys, time
import airflow.sdk, airflow.dag_processing.dagbag, pydantic_settings, yaml  # what any DAG file would import
from importlib import import_module
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

seconds = {}
for name in ("curate_corpus", "train_cascade", "retrain_domain"):
    before = time.process_time()
    import_module(f"dags.{name}")
    seconds[name] = time.process_time() - before
heavy = sorted(
    {"torch", "dask", "distributed", "numpy", "pandas", "pyarrow", "great_expectations", "deepspeed", "boto3"}
    & set(sys.modules)
)
bag = DagBag(sys.argv[1])
json.dump(
    {
        "seconds": seconds,
        "heavy": heavy,
        "import_errors": bag.import_errors,
        "dags": {dag_id: DagSerialization.to_dict(dag)["dag"] for dag_id, dag in bag.dags.items()},
    },
    open(sys.argv[2], "w"),
    default=str,
)
"""


def parse(folder: Path, **environment: str) -> dict[str, Any]:
    """Seconds of CPU a file, heavy modules loaded, import errors, and the serialized DAGs."""
    airflow = {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "PYTHONPATH": str(ROOT),
    }
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "ATHANOR"))}
    result = folder / "parsed.json"
    subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags"), str(result)],
        check=True,
        cwd=ROOT,
        env=inherited | airflow | environment,
        timeout=120,
    )
    return json.loads(result.read_text())
