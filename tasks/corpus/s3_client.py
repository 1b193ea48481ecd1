"""The boto3 client of this process, and its errors in the project's words."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tasks.errors import StorageError, UnreadableError

OF_THE_OBJECT = ("NoSuchKey", "AccessDenied", "InvalidObjectState", "404")  # the store itself is well


@cache
def client() -> Any:
    """One client a process: boto3 clients are safe to share between threads, and slow to make.

    Credentials, region and endpoint come from boto3's standard chain. Requests that fail for want of a connection or
    of capacity are repeated, ever more slowly, and the rate of requests adapts to what the service bears.
    """
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        config=Config(
            retries={"mode": "adaptive", "max_attempts": 10},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=32,
            tcp_keepalive=True,
        ),
    )


def status(error: Any) -> int:
    """HTTP status of a ClientError."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_missing(error: Any) -> bool:
    """Whether a ClientError says that the object is not there. A bucket that is missing is another matter."""
    return error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404")


def retried(error: Any) -> bool:
    """Whether a ClientError came only at a second try or later: the first may have done its work unseen."""
    return int(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)) > 0


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Raises StorageError that names the object, or UnreadableError when it is the object's own fault."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        raise (UnreadableError if code in OF_THE_OBJECT else StorageError)(f"{uri}: {error}") from error
    except (BotoCoreError, Boto3Error, OSError) as error:
        raise StorageError(f"{uri}: {error}") from error
