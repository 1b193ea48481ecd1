"""Several hosts: two agents with one rank each train as one supervisor with two ranks does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.corpus.artifact import read_artifact
from tasks.errors import ConfigError
from tasks.settings import REPOSITORY
from tasks.training.hosts import FILE, Start, announce, interface_of
from tasks.training.job import Job
from tasks.training.plan import StageSpec, plan_stage
from tests.training.jobs import RECIPE, finish, steps_of

TWO = ("127.0.0.1", "127.0.0.2")


def test_every_host_has_as_many_ranks(tmp_path):
    start = Start(token=1, attempt=0, addresses=TWO, port=5000, ranks=6)
    assert [list(start.share(number)) for number in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ConfigError, match="3 processes on 2 hosts"):
        announce(Job(tmp_path), 1, 0, TWO, 3)
    told = announce(Job(tmp_path), 1, 0, TWO, 4)
    assert Start.model_validate_json((tmp_path / FILE).read_bytes()) == told and told.port > 0
    assert told.environment(1)["MASTER_ADDR"] == "127.0.0.1"


def test_an_address_of_another_host_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7 is no address of this host"):
        announce(Job(tmp_path), 1, 0, ("192.0.2.7", "127.0.0.1"), 2)
    with pytest.raises(ConfigError, match="it has the interfaces"):
        interface_of("192.0.2.7")


@pytest.fixture(scope="module")
def tokenizer(plan, tmp_path_factory) -> StageSpec:
    spec = plan("tokenizer", tmp_path_factory.mktemp("tokenizer"))
    finish(spec)
    return spec


def pretraining(place: Path, tokenizer: StageSpec) -> StageSpec:
    parents = {"tokenizer": tokenizer.artifact}
    return plan_stage(RECIPE, "pretrain", store=str(place / "store"), home=str(place / "home"), parents=parents)


def agent(place: Path, address: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *before,
            sys.executable,
            "-m",
            "tasks",
            "host-agent",
            "--home",
            str(place / "home"),
            "--address",
            address,
            "--once",
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.slow
def test_two_agents_train_as_one_does(tokenizer, tmp_path, monkeypatch):
    alone = pretraining(tmp_path / "alone", tokenizer)
    expected = steps_of(finish(alone))
    spec = pretraining(tmp_path / "two", tokenizer)
    monkeypatch.setenv("ATHANOR_HOSTS", ",".join(TWO))
    other = agent(tmp_path / "two", TWO[1])
    try:
        job = finish(spec)
        assert other.wait(30) == 0
    finally:
        other.kill()
    steps = steps_of(job)
    assert [line["loss"] for line in steps] == [line["loss"] for line in expected], "to the bit"
    assert read_artifact(spec.artifact).hash == read_artifact(alone.artifact).hash
    assert not (job.folder / FILE).exists() and (job.folder / "host-1-1-0.json").read_bytes() == b"[0]"


NETWORK = "athanor-test"


@pytest.fixture
def namespaces():
    """Two network namespaces with a cable between them: `(exec, address)` of each."""
    ip = shutil.which("ip")
    if os.geteuid() != 0 or ip is None:
        pytest.skip("network namespaces need root and the command `ip`")

    def do(*arguments: str, check: bool = True) -> int:
        return subprocess.run([ip, *arguments], check=check, capture_output=not check).returncode

    names = [f"{NETWORK}-{i}" for i in (1, 2)]
    if do("netns", "add", names[0], check=False) != 0:
        pytest.skip("network namespaces are not allowed here")
    try:
        do("netns", "add", names[1])
        do("link", "add", "ath1", "netns", names[0], "type", "veth", "peer", "name", "ath2", "netns", names[1])
        for i, name in enumerate(names, 1):
            do("-n", name, "address", "add", f"10.77.0.{i}/24", "dev", f"ath{i}")
            do("-n", name, "link", "set", f"ath{i}", "up")
            do("-n", name, "link", "set", "lo", "up")
        yield [((ip, "netns", "exec", name), f"10.77.0.{i}") for i, name in enumerate(names, 1)]
    finally:
        for name in names:
            do("netns", "del", name, check=False)


@pytest.mark.slow
def test_two_hosts_that_share_no_network_but_a_cable(tokenizer, tmp_path, namespaces):
    alone = pretraining(tmp_path / "alone", tokenizer)
    expected = [line["loss"] for line in steps_of(finish(alone))]
    (here, first), (there, second) = namespaces
    spec = pretraining(tmp_path / "two", tokenizer)
    Path(spec.job).mkdir(parents=True)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    other = agent(tmp_path / "two", second, there)
    begin = (
        "import sys; from pathlib import Path; from tasks.training.job import submit; "
        "from tasks.training.plan import StageSpec; "
        "status = submit(StageSpec.model_validate_json(Path(sys.argv[1]).read_text())).wait(300); "
        "print(status.state, status.message); sys.exit(status.state != 'succeeded')"
    )
    try:
        subprocess.run(
            [*here, sys.executable, "-c", begin, str(tmp_path / "spec.json")],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "ATHANOR_HOSTS": f"{first},{second}"},
            check=True,
        )
        assert other.wait(30) == 0
    finally:
        other.kill()
    assert [line["loss"] for line in steps_of(Job.load(spec.job))] == expected
