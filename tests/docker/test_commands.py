"""Every command that the files of docker/ name is one that its program takes."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml
from click.exceptions import UsageError

from tests.docker.test_images import DOCKER, HELM, MANIFESTS, services

__all__ = ["services"]  # a fixture

PARSE = """
import json, sys
from airflow.cli.cli_parser import get_parser
import airflow.providers.celery.executors.celery_executor  # of the pinned version of Celery
parser = get_parser()
for command in json.load(sys.stdin):
    assert parser.parse_args(command[1:]).func, command
"""
SHARED = {"train": ["--recipe", "--corpus", "--instructions", "--store"], "host-agent": ["--home", "--address"]}


def test_airflow_takes_its_commands(services: dict[str, Any]) -> None:
    """Those of compose and their health checks, of prepare.sh, and the program of every service of ours."""
    pytest.importorskip("airflow.providers.celery", reason="see requirements-deployment.txt")
    found = [service["command"] for service in services.values()]
    found += [service["healthcheck"]["test"][1:] for service in services.values() if "healthcheck" in service]
    found = [command for command in found if command[0] == "airflow"]
    assert len(found) == 8, found
    script = (DOCKER / "prepare.sh").read_text(encoding="utf-8")
    found += [["airflow", *line.split()[1:]] for line in re.findall(r"^airflow db .*$", script, re.M)]
    found.append(["airflow", "pools", "set", "accelerator", "1", "words", "--include-deferred"])
    assert "airflow pools set accelerator" in script and "--include-deferred" in script
    done = subprocess.run([sys.executable, "-c", PARSE], input=json.dumps(found), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_dask_takes_its_commands(services: dict[str, Any]) -> None:
    from distributed.cli import dask_scheduler, dask_worker

    commands = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
    found = [services["dask-scheduler"]["command"], services["dask-worker"]["command"]]
    cluster = yaml.safe_load((DOCKER / "kubernetes" / "dask-cluster.yaml").read_text(encoding="utf-8"))["spec"]
    found += [cluster[part]["spec"]["containers"][0]["args"] for part in commands]
    for dask, part, *arguments in found:
        assert dask == "dask"
        commands[part].make_context(part, list(arguments))
        with pytest.raises(UsageError):
            commands[part].make_context(part, [*arguments, "--no-such-option", "1"])


@pytest.mark.parametrize("command", SHARED)
def test_tasks_take_the_options_of_the_training_job(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tasks", command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [option for option in SHARED[command] if option not in done.stdout] == []
    script = (DOCKER / "train-host.sh").read_text(encoding="utf-8")
    assert f"python -m tasks {command}" in script
    job = next(text for path in MANIFESTS if "train-host.sh" in (text := path.read_text(encoding="utf-8")))
    used = set(re.findall(r"--[a-z]+", job.split("args:")[1].split("\n")[0] if command == "train" else script))
    assert used <= set(SHARED["train"] + SHARED["host-agent"])


@pytest.mark.parametrize("name", ["prepare.sh", "train-host.sh"])
def test_scripts_are_shell(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(DOCKER / name)], capture_output=True, text=True).stderr == ""


def test_helm_and_compose_name_the_same_images(services: dict[str, Any]) -> None:
    values = yaml.safe_load(HELM.read_text(encoding="utf-8"))
    assert services["scheduler"]["image"] == f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}"
    requirements = (DOCKER.parent / "requirements.txt").read_text(encoding="utf-8")
    assert f"apache-airflow=={values['airflowVersion']}" in requirements
    version = re.search(r'^version = "(.*)"', (DOCKER.parent / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version and values["defaultAirflowTag"] == version[1]
