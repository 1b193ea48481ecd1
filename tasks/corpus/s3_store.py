"""A store that is a bucket of any S3-compatible service, through boto3."""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from tasks.corpus.s3_client import client, explained, is_missing, retried, status
from tasks.corpus.s3_stream import ObjectStream
from tasks.corpus.store import Entry
from tasks.errors import UnreadableError

READ_AHEAD = 1 << 16  # bytes


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
        with explained(self.uri):
            pages = client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=root + prefix)
            found = [
                Entry(item["Key"].removeprefix(root), item["Size"], item["LastModified"])
                for page in pages
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ]
        yield from sorted(found, key=lambda entry: entry.key)

    def exists(self, key: str) -> bool:
        with explained(f"{self.uri}/{key}"):
            return self._head(key) is not None

    def size(self, key: str) -> int | None:
        with explained(f"{self.uri}/{key}"):
            head = self._head(key)
        return head["ContentLength"] if head else None

    def _head(self, key: str) -> dict[str, Any] | None:
        from botocore.exceptions import ClientError

        try:
            return client().head_object(Bucket=self.bucket, Key=self._key(key))
        except ClientError as error:
            if is_missing(error):
                return None
            raise

    def read(self, key: str) -> bytes:
        with self.open(key) as stream:
            return b"".join(iter(lambda: stream.read(1 << 20), b""))

    def open(self, key: str) -> BinaryIO:
        stream = io.BufferedReader(ObjectStream(self.bucket, self._key(key)), READ_AHEAD)
        stream.peek(1)  # so that a missing object is missed here, and not somewhere in the caller's reading
        return cast(BinaryIO, stream)

    def write(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        return self._put(key, data, {"IfNoneMatch": "*"} if if_absent else {})

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> bool:
        """Put under a condition; False when it does not hold."""
        from botocore.exceptions import ClientError

        with explained(f"{self.uri}/{key}"):
            for pause in (0.1, 0.3, 1.0, None):
                try:
                    client().put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)
                    return True
                except ClientError as error:
                    if condition and status(error) == 409 and pause:  # another put or delete is under way
                        time.sleep(pause)
                    elif condition and (status(error) == 412 or is_missing(error)):
                        # A put whose answer was lost is sent again, and then meets what it wrote itself.
                        return retried(error) and self.exists(key) and self.read(key) == data
                    else:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def upload(self, path: Path, key: str) -> None:
        with explained(f"{self.uri}/{key}"):
            client().upload_file(str(path), self.bucket, self._key(key))

    def download(self, key: str, path: Path) -> None:
        with explained(f"{self.uri}/{key}"):
            client().download_file(self.bucket, self._key(key), str(path))

    def delete(self, key: str) -> None:
        with explained(f"{self.uri}/{key}"):
            client().delete_object(Bucket=self.bucket, Key=self._key(key))

    def clear_unfinished(self) -> None:
        """Nothing: an object is there when it is whole. Parts of one that was not are for the bucket's own rules."""

    def compare_and_swap(self, key: str, expected: bytes | None, new: bytes) -> bool:
        if expected is None:
            return self.write(key, new, if_absent=True)
        with explained(f"{self.uri}/{key}"):
            head = self._head(key)
        try:
            if head is None or self.read(key) != expected:
                return False
        except UnreadableError:  # deleted just now
            return False
        return self._put(key, new, {"IfMatch": head["ETag"]})

    def sub(self, prefix: str) -> "S3Store":
        return S3Store(f"{self.uri}/{prefix}")

    def local(self, key: str = "") -> Path | None:
        return None
