"""Credentials of the S3 store from an Airflow connection, for who keeps them there and not in the environment.

The connection is called `athanor_s3`: its login is the access key's id, its password the secret access key; `extra` may
hold `aws_session_token`, `region_name` and `endpoint_url`. They are put into the process' environment, where
boto3's standard chain looks first, and which Dask workers and trainers inherit. Without the connection the chain stays
as it is.

As a command, `python -m plugins.credentials`, this prints the variables as JSON, for the local runner, which reads the
store before any task does.
"""

import json
import os
import subprocess
import sys
from typing import Any

from tasks.settings import Settings, settings

CONNECTION = "athanor_s3"
ENVIRONMENT = f"AIRFLOW_CONN_{CONNECTION.upper()}"  # Airflow reads connections from such variables, too
OF_EXTRA = {
    "aws_session_token": "AWS_SESSION_TOKEN",
    "region_name": "AWS_DEFAULT_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
}


def use_connection(config: Settings | None = None) -> None:
    """Put the connection's credentials into this process' environment, if data or store lie on S3 and it is there."""
    if on_s3(config or settings()):
        _use(variables())


def on_s3(config: Settings) -> bool:
    return any(place.startswith("s3://") for place in (config.data, config.store))


def variables() -> dict[str, str]:
    """What boto3 is to find in the environment; nothing where there is no such connection. Airflow masks it in logs."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found = Connection.get(CONNECTION)
    except AirflowNotFoundException:
        return {}
    extra: dict[str, Any] = found.extra_dejson
    given = {"AWS_ACCESS_KEY_ID": found.login, "AWS_SECRET_ACCESS_KEY": found.password}
    given |= {name: extra.get(key) for key, name in OF_EXTRA.items()}
    return {name: str(value) for name, value in given.items() if value}


def use_connection_of(environment: dict[str, str]) -> None:
    """The same, asked of the Airflow that `environment` describes."""
    found = subprocess.run(
        [sys.executable, "-m", "plugins.credentials"],
        env=environment | {"_AIRFLOW_PROCESS_CONTEXT": "server"},  # so that the connections of its database are seen
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    _use(json.loads(found.stdout.splitlines()[-1]))


def _use(found: dict[str, str]) -> None:
    from tasks.corpus import s3_client

    if any(os.environ.get(name) != value for name, value in found.items()):
        os.environ.update(found)
        s3_client.client.cache_clear()


if __name__ == "__main__":
    print(json.dumps(variables()))
