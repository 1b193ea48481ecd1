"""A store that is a bucket of any S3-compatible service, through boto3."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from tasks.corpus.store import Entry
from tasks.errors import StorageError


class S3Store:
    """A bucket and prefix of any S3-compatible service, through boto3's standard credential chain."""

    def __init__(self, uri: str) -> None:
        parts = urlsplit(uri)
        self.bucket = parts.netloc
        # Not parts.path: a key may hold '?' and '#'.
        self.prefix = uri.removeprefix(f"s3://{self.bucket}").strip("/")
        self.uri = f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def _key(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def list(self, prefix: str = "") -> Iterator[Entry]:
        root = f"{self.prefix}/" if self.prefix else ""
        with _explained(self.uri):
            pages = client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=root + prefix)
            found = [
                Entry(item["Key"].removeprefix(root), item["Size"], item["LastModified"])
                for page in pages
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ]
        yield from sorted(found, key=lambda entry: entry.key)

    def exists(self, key: str) -> bool:
        with _explained(f"{self.uri}/{key}"):
            return self._head(key) is not None

    def size(self, key: str) -> int | None:
        with _explained(f"{self.uri}/{key}"):
            head = self._head(key)
        return head["ContentLength"] if head else None

    def _head(self, key: str) -> dict[str, Any] | None:
        from botocore.exceptions import ClientError

        try:
            return client().head_object(Bucket=self.bucket, Key=self._key(key))
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise

    def read(self, key: str) -> bytes:
        with _explained(f"{self.uri}/{key}"), self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        from smart_open import open as smart_open

        with _explained(f"{self.uri}/{key}"):
            # smart_open asks for the rest of the object again when a connection drops in mid-body.
            stream = smart_open(
                f"s3://{self.bucket}/{self._key(key)}",
                "rb",
                compression="disable",
                transport_params={"client": client(), "defer_seek": True},
            )
        return cast(BinaryIO, io.BufferedReader(_ExplainedStream(stream, f"{self.uri}/{key}"), 1 << 16))

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with _explained(f"{self.uri}/{key}"):
            try:
                client().put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)
            except ClientError as error:
                if if_absent and _status(error) in (409, 412):
                    return False
                raise
        return True

    def upload(self, path: Path, key: str) -> None:
        with _explained(f"{self.uri}/{key}"):
            client().upload_file(str(path), self.bucket, self._key(key))

    def download(self, key: str, path: Path) -> None:
        with _explained(f"{self.uri}/{key}"):
            client().download_file(self.bucket, self._key(key), str(path))

    def delete(self, key: str) -> None:
        with _explained(f"{self.uri}/{key}"):
            client().delete_object(Bucket=self.bucket, Key=self._key(key))

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        from botocore.exceptions import ClientError

        if expected is None:
            return self.write(key, new, if_absent=True)
        with _explained(f"{self.uri}/{key}"):
            head = self._head(key)
            if head is None or self.read(key) != expected:
                return False
            try:
                client().put_object(Bucket=self.bucket, Key=self._key(key), Body=new, IfMatch=head["ETag"])
            except ClientError as error:
                if _status(error) in (404, 409, 412):
                    return False
                raise
        return True

    def sub(self, prefix: str) -> "S3Store":
        return S3Store(f"{self.uri}/{prefix}")

    def local(self, key: str = "") -> Path | None:
        return None


class _ExplainedStream(io.RawIOBase):
    """A stream whose failures in mid-body are StorageErrors that name the object."""

    def __init__(self, stream: Any, uri: str) -> None:
        self._stream, self._uri = stream, uri

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _explained(self._uri):
            data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with _explained(self._uri):
            return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


@cache
def client() -> Any:
    """One client a process: boto3 clients are safe to share between threads, and slow to make."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        config=Config(retries={"mode": "adaptive", "max_attempts": 10}, connect_timeout=10, read_timeout=60),
    )


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise StorageError(f"{uri}: {error}") from error
