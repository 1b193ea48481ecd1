"""The files of docker/ as their own tools read them: hadolint, docker compose, Kubernetes' schemas. No engine."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.settings import REPOSITORY, Settings

DOCKER = REPOSITORY / "docker"
COMPOSE, GPU, DOCKERFILE = DOCKER / "compose.yaml", DOCKER / "compose.gpu.yaml", DOCKER / "Dockerfile"
README = DOCKER / "README.md"
HELM = DOCKER / "helm" / "airflow-values.yaml"
MANIFESTS = sorted((DOCKER / "kubernetes").glob("*.yaml"))
SECRETS = sorted(set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text(encoding="utf-8"))))
PARTS = {
    *("api-server", "scheduler", "dag-processor", "triggerer", "worker", "trainer"),
    *("postgres", "redis", "s3", "dask-scheduler", "dask-worker"),
}
ONCE = {"prepare", "volumes"}  # services that end when they have done their work


def tool(name: str) -> str:
    """A tool of requirements-deployment.txt, beside this Python or on the path."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed; `make test` does, from requirements-deployment.txt")
    return found


def compose(*files: Path, **secrets: str) -> "subprocess.CompletedProcess[str]":
    """What docker compose makes of the files; without `secrets` it has none of them."""
    named = [part for file in files for part in ("--file", str(file))]
    clean = {key: value for key, value in os.environ.items() if key not in SECRETS}
    command = [tool("docker-compose"), *named, "--env-file", os.devnull, "config", "--format", "json"]
    return subprocess.run(command, env={**clean, **secrets}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    done = compose(COMPOSE, **dict.fromkeys(SECRETS, "a-secret"))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    command = [tool("hadolint"), "--failure-threshold", "style", str(DOCKERFILE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_nobody_special_and_copies_what_is_there() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    for stage in re.split(r"^FROM ", text, flags=re.M)[1:]:
        name = stage.split("\n", 1)[0].split()[-1]
        if name in ("airflow", "training"):
            assert re.findall(r"^USER (.*)$", stage, re.M) == ["50000:0"], name
    allowed = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M):
        for source in line.split()[:-1]:
            assert (REPOSITORY / source).exists(), source
            assert f"!{source}" in allowed or f"!{Path(source).parent}/*{Path(source).suffix}" in allowed, source


def test_every_package_of_the_images_is_pinned() -> None:
    for name in ("", "-models", "-deployment"):
        for line in (REPOSITORY / f"requirements{name}.txt").read_text(encoding="utf-8").splitlines():
            package = line.split("#")[0].strip()
            assert not package or package.startswith("-r ") or "==" in package, line
    for line in (DOCKER / "requirements.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or "==" in line, line


def test_the_package_index_leaves_no_trace(tmp_path: Path) -> None:
    """It comes as a secret of the build, which no layer and no history keeps; and pip does without one."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert not re.findall(r"^(?:ARG|ENV) .*(?:PIP|INDEX)", text, re.M)
    steps = [step for step in re.split(r"^(?=[A-Z]+ )", text, flags=re.M) if "pip install" in step]
    assert steps and all(step.startswith("RUN --mount=type=secret,id=pip ") for step in steps)
    assert all("export PIP_CONFIG_FILE=/run/secrets/pip " in step for step in steps)
    secret, command = tmp_path / "pip", [sys.executable, "-m", "pip", "config", "list"]
    environment = {**os.environ, "PIP_CONFIG_FILE": str(secret)}
    for there in (False, True):
        if there:
            secret.write_text("[global]\nextra-index-url = https://ada:password@host/simple\n")
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, "ada:password" in done.stdout) == (0, there), done.stderr


def test_compose_has_every_part_healthy_limited_and_without_privileges(services: dict[str, Any]) -> None:
    assert set(services) == PARTS | ONCE
    for name, service in services.items():
        assert service["user"] not in ("root", "0", "0:0"), name
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"], name
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        assert re.search(r":v?(RELEASE\.)?\d[\w.-]+$", service["image"]), f"{name}: {service['image']} is not pinned"
        assert ("healthcheck" in service) != (name in ONCE), name
        assert service["restart"] == ("no" if name in ONCE else "unless-stopped"), name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", f"{name} is reached from elsewhere"


def test_secrets_come_from_the_environment_alone() -> None:
    done = compose(COMPOSE)
    assert done.returncode != 0
    for name in SECRETS:
        assert f"required variable {name} is missing a value: see docker/README.md" in done.stderr
    for path in (COMPOSE, GPU, HELM, *MANIFESTS):
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\s*\w*(?:PASSWORD|SECRET|_KEY|_CONN)\w*: *(\S+)", line):
                assert "${" in found[1] or "PASSWORDS_FILE" in line, f"{path.name}: {line.strip()}"
    written = README.read_text(encoding="utf-8")
    assert [name for name in SECRETS if f"{name}=" not in written] == []


def test_no_secret_reaches_a_part_that_does_not_need_it(services: dict[str, Any]) -> None:
    for name in ("dask-scheduler", "dask-worker"):
        told = set(services[name]["environment"])
        assert {key for key in told if not key.startswith("AWS_")} == {"ATHANOR_HOME"}
    holders = [name for name, service in services.items() if "UI_PASSWORD" in service.get("environment", {})]
    assert holders == ["prepare"]


def test_settings_are_ones_that_the_project_knows(services: dict[str, Any]) -> None:
    known = {f"ATHANOR_{name.upper()}" for name in Settings.model_fields}
    said = {name for service in services.values() for name in service.get("environment", {})}
    said |= {item["name"] for item in yaml.safe_load(HELM.read_text(encoding="utf-8"))["env"]}
    assert {name for name in said if name.startswith("ATHANOR_")} <= known


def test_helm_has_a_place_for_every_setting_that_compose_has(services: dict[str, Any]) -> None:
    """In `env`, or in a secret that the values name and the README makes."""
    values = yaml.safe_load(HELM.read_text(encoding="utf-8"))
    secrets = [item["secretRef"]["name"] for item in yaml.safe_load(values["extraEnvFrom"])]
    commands = re.findall(r"kubectl create secret generic (\S+)((?:.*\\\n)*.*)", README.read_text(encoding="utf-8"))
    made = {name: set(re.findall(r"--from-literal=(\w+)=", options)) for name, options in commands}
    told = {item["name"] for item in values["env"]}.union(*(made[name] for name in secrets))
    wanted = {name for name in services["api-server"]["environment"] if name.startswith(("ATHANOR_", "AWS_"))}
    assert wanted <= told


def test_a_gpu_is_added_and_nothing_else_changes(services: dict[str, Any]) -> None:
    done = compose(COMPOSE, GPU, **dict.fromkeys(SECRETS, "a-secret"))
    assert done.returncode == 0, done.stderr
    with_gpu = json.loads(done.stdout)["services"]
    assert [name for name in services if with_gpu[name] != services[name]] == ["trainer"]
    assert with_gpu["trainer"]["environment"]["DS_ACCELERATOR"] == "cuda"
    (device,) = with_gpu["trainer"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


@pytest.mark.parametrize("version", ["1.33.0", "1.37.0"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_fit_the_schemas_of_kubernetes(path: Path, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="see requirements-deployment.txt")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        for plain in as_plain(document):
            kubernetes_validate.validate(plain, version, strict=True)


def as_plain(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A resource of Kubernetes' own; of a Dask cluster, the pods and the service that the operator makes from it."""
    if document["kind"] != "DaskCluster":
        return [document]
    assert set(document["spec"]) == {"idleTimeout", "worker", "scheduler"}
    named = {"apiVersion": "v1", "metadata": document["metadata"]}
    pods = [{**named, "kind": "Pod", "spec": document["spec"][part]["spec"]} for part in ("worker", "scheduler")]
    return [*pods, {**named, "kind": "Service", "spec": document["spec"]["scheduler"]["service"]}]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_pods_have_limits_and_no_privileges(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        for plain in as_plain(document):
            spec = plain["spec"] if plain["kind"] == "Pod" else plain["spec"].get("template", {}).get("spec")
            if spec is None:
                continue
            assert spec["securityContext"]["runAsNonRoot"] and spec["automountServiceAccountToken"] is False
            for container in spec["containers"]:
                unprivileged = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
                assert container["securityContext"] == unprivileged
                assert {"cpu", "memory"} <= set(container["resources"]["limits"])
                assert re.search(r":\d[\w.]+$", container["image"]), container["image"]


def test_every_queue_that_a_task_names_has_a_worker(services: dict[str, Any]) -> None:
    from dags import policies

    named = {value["queue"] for value in vars(policies).values() if isinstance(value, dict) and "queue" in value}
    assert named == {"accelerator"}, "the policies of training and evaluation name it"
    commands = [service["command"] for service in services.values()]
    listened = {command[4] for command in commands if command[1:4] == ["celery", "worker", "--queues"]}
    assert listened == named | {"default"}
    celery = yaml.safe_load(HELM.read_text(encoding="utf-8"))["workers"]["celery"]
    assert {celery["queue"], *(item["queue"] for item in celery["sets"])} == listened
