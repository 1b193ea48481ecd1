"""Reading one object of S3 as a stream that outlives its connections."""

import io
import time
from typing import Any

from tasks.corpus.s3_client import client, explained, status
from tasks.errors import StorageError

ATTEMPTS = 8  # in a row that give no byte; each waits twice as long as the one before
FIRST_WAIT = 0.1  # seconds


class ObjectStream(io.RawIOBase):
    """The bytes of one object, from the position on that was sought.

    A body that breaks off is asked for again from where it broke, of the same version of the object (If-Match): what
    is read is never spliced of two. Raises StorageError that names the object; UnreadableError when it is not there.
    """

    def __init__(self, bucket: str, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._uri = f"s3://{bucket}/{key}"
        self._position = 0
        self._size: int | None = None
        self._version: str | None = None  # its ETag
        self._body: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises StorageError when connections keep breaking, or the object is replaced while it is read."""
        from botocore.exceptions import BotoCoreError, FlexibleChecksumError
        from urllib3.exceptions import HTTPError

        broke: Exception | None = None
        for attempt in range(ATTEMPTS):
            if self._body is None and not self._at_end():
                self._open()
            if self._at_end():
                return 0
            try:
                data = self._body.read(len(buffer))
            except FlexibleChecksumError as error:
                raise StorageError(f"{self._uri}: its bytes do not fit their checksum: {error}") from error
            except (BotoCoreError, HTTPError, OSError) as error:
                broke, data = error, b""
            if data:
                buffer[: len(data)] = data
                self._position += len(data)
                return len(data)
            self._drop()
            time.sleep(FIRST_WAIT * 2**attempt)
        raise StorageError(f"{self._uri}: broke off {ATTEMPTS} times at byte {self._position}: {broke}")

    def _at_end(self) -> bool:
        return self._size is not None and self._position >= self._size

    def _open(self) -> None:
        from botocore.exceptions import ClientError

        asked = {"Bucket": self._bucket, "Key": self._key}
        if self._position:
            asked["Range"] = f"bytes={self._position}-"
        if self._version:
            asked["IfMatch"] = self._version
        with explained(self._uri):
            try:
                answer = client().get_object(**asked)
            except ClientError as error:
                if status(error) == 412:
                    raise StorageError(f"{self._uri}: was replaced while it was read; run this again") from None
                raise
        self._body, self._version = answer["Body"], answer["ETag"]
        self._size = self._position + answer["ContentLength"]

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size is None:
            self._open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size or 0}[whence]
        if start + offset != self._position:
            self._drop()
            self._position = max(start + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._drop()
        super().close()
