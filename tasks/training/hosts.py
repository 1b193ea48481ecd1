"""Several hosts train one job: the supervisor on the first, an agent on each of the others.

Jobs lie in a folder that all hosts share. For every start of the ranks the supervisor writes what the agents need to
know into the job's folder, `hosts.json`: which start it is, who takes part, and where the ranks meet (torch's own TCP
rendezvous on the first host). An agent starts its host's ranks, watches them, and writes how they ended into
`host-<number>-<start>.json`. When hosts.json is gone or says another start, or the job's owner no longer beats, the
agent ends its ranks: an agent never outlives what it works for.

    python -m tasks host-agent --home SHARED --address 10.0.0.2        # on every host but the first
    ATHANOR_HOSTS=10.0.0.1,10.0.0.2 python -m tasks train …            # on the first
"""

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import orjson
import psutil

from tasks.corpus.storage import LocalStore, to_json
from tasks.errors import ConfigError
from tasks.settings import StrictModel
from tasks.training.job import Job

FILE = "hosts.json"
POLL = 0.2  # seconds between two looks of an agent


class Start(StrictModel):
    """One start of a job's ranks on several hosts. `addresses`: the first host's is where the ranks meet."""

    token: int
    attempt: int
    addresses: tuple[str, ...]
    port: int
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.token}-{self.attempt}"

    def share(self, number: int) -> range:
        """The ranks of a host, which all have as many."""
        each = self.ranks // len(self.addresses)
        return range(number * each, (number + 1) * each)

    def environment(self, number: int) -> dict[str, str]:
        """What a host's ranks need to meet the others."""
        return {
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": interface_of(self.addresses[number]),
        }


def announce(job: Job, token: int, attempt: int, addresses: tuple[str, ...], ranks: int) -> Start:
    """Tell the agents of a start. Raises ConfigError when the ranks cannot be shared evenly."""
    if ranks % len(addresses):
        raise ConfigError(
            f"{ranks} processes on {len(addresses)} hosts ({', '.join(addresses)}): not the same number on each; "
            "change `processes` of the stage, or ATHANOR_HOSTS"
        )
    start = Start(token=token, attempt=attempt, addresses=addresses, port=_free_port(addresses[0]), ranks=ranks)
    LocalStore(job.folder).write(FILE, to_json(start.model_dump()))
    return start


def withdraw(job: Job, token: int) -> None:
    """Tell the agents that an owner's start is over; a later owner's stays."""
    start = _read(job.folder / FILE)
    if start is not None and start.token == token:
        (job.folder / FILE).unlink(missing_ok=True)


def remote_codes(job: Job, start: Start) -> list[int | None]:
    """How the ranks of the other hosts ended, in order; None for those that have not, as far as is known."""
    codes: list[int | None] = []
    for number in range(1, len(start.addresses)):
        path = job.folder / f"host-{number}-{start.name}.json"
        codes += orjson.loads(path.read_bytes()) if path.exists() else [None] * len(start.share(number))
    return codes


def serve(home: Path, address: str, once: bool = False) -> None:
    """Take part in every job under `home` that names this host, one after another, for ever or for one start."""
    from tasks.training.launch import start_ranks, stop_ranks

    served: set[tuple[str, str]] = set()
    while True:
        for path in sorted((home / "jobs").glob(f"*/{FILE}")):
            job, start = Job(path.parent), _read(path)
            if start is None or address not in start.addresses[1:] or (path.parent.name, start.name) in served:
                continue
            served.add((path.parent.name, start.name))
            number = start.addresses.index(address)
            print(f"{job.folder.name}: ranks {list(start.share(number))} of {start.ranks}", flush=True)
            ranks = start_ranks(
                job, start.token, start.attempt, start.share(number), start.ranks, start.environment(number)
            )
            try:
                _watch(job, start, number, ranks)
            finally:
                stop_ranks(ranks)
            if once:
                return
        time.sleep(POLL)


def _watch(job: Job, start: Start, number: int, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Until the ranks have ended, one has failed, or nobody waits for them any more."""
    while _read(job.folder / FILE) == start and job.status().state == "running":
        codes = [rank.poll() for rank in ranks]
        if all(code is not None for code in codes) or any(codes):
            LocalStore(job.folder).write(f"host-{number}-{start.name}.json", orjson.dumps(codes))
            return
        time.sleep(POLL)


def _read(path: Path) -> Start | None:
    with suppress(FileNotFoundError):  # it may be withdrawn at any moment
        return Start.model_validate_json(path.read_bytes())
    return None


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as found:
        try:
            found.bind((address, 0))
        except OSError as error:
            raise ConfigError(
                f"{address} is no address of this host ({error.strerror}); the first of ATHANOR_HOSTS must be"
            ) from None
        return found.getsockname()[1]


def interface_of(address: str) -> str:
    """The network interface that has an address. Raises ConfigError when none has."""
    known = psutil.net_if_addrs()
    for name, addresses in known.items():
        if address in {item.address for item in addresses}:
            return name
    if address.startswith("127."):  # all of 127/8 is the loopback's, though it lists one address
        return next((name for name in ("lo", "lo0") if name in known), "lo")
    raise ConfigError(f"{address} is no address of this host; it has the interfaces {', '.join(sorted(known))}")
