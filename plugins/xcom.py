"""XCom whose larger values lie in the project's store, beside corpora and models, and not in Airflow's database.

    AIRFLOW__CORE__XCOM_BACKEND=plugins.xcom.StoreXCom

The database keeps a reference, `{"athanor_xcom": "<dag>/<run>/<task>/<hash>.json"}` below `<store>/xcom`. An object is
named by its content, so a task that is tried again writes the same one. Airflow's own backend for object storage needs
s3fs, which excludes the boto3 that the project reads shards with.
"""

import hashlib
from typing import Any
from urllib.parse import quote

import orjson
from airflow.sdk.bases.xcom import BaseXCom

from plugins.credentials import use_connection
from tasks.corpus.storage import join, open_store, read_json
from tasks.errors import DataError
from tasks.settings import settings

REFERENCE = "athanor_xcom"
LARGE = 2_000  # bytes of JSON from which on a value goes to the store


class StoreXCom(BaseXCom):
    """Small values as ever; a large one goes to the store. Raises StorageError when that does not answer."""

    @staticmethod
    def serialize_value(
        value: Any,
        *,
        key: str | None = None,
        task_id: str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        map_index: int | None = None,
    ) -> Any:
        plain = BaseXCom.serialize_value(value)
        data = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        if len(data) < LARGE:
            return plain
        mapped = None if map_index is None or map_index < 0 else str(map_index)
        parts = (dag_id, run_id, task_id, mapped, key)  # each XCom its own object: it goes with its row
        place = "/".join(quote(part or "none", safe="") for part in parts)
        name = f"{place}/{hashlib.blake2b(data, digest_size=16).hexdigest()}.json"
        open_store(_root()).write(name, data)
        return BaseXCom.serialize_value({REFERENCE: name})

    @staticmethod
    def deserialize_value(result: Any) -> Any:
        value = BaseXCom.deserialize_value(result)
        return BaseXCom.deserialize_value(_Kept(stored(value))) if _name(value) else value

    @classmethod
    def purge(cls, xcom: Any, *args: Any) -> None:
        if name := _name(BaseXCom.deserialize_value(xcom)):
            open_store(_root()).delete(name)


class _Kept:
    """What Airflow's deserialisation asks of a database row."""

    def __init__(self, value: Any) -> None:
        self.value = value


def stored(value: Any) -> Any:
    """The value that a reference means, for who reads Airflow's database itself; any other value is returned as it is.

    Raises AthanorError when it is gone or the store does not answer.
    """
    name = _name(value)
    return value if name is None else read_json(join(_root(), name))


def _name(value: Any) -> str | None:
    """The name in a reference, None when the value is no reference. Nothing outside the folder can be named."""
    if not isinstance(value, dict) or list(value) != [REFERENCE]:
        return None
    name = value[REFERENCE]
    if not isinstance(name, str) or ".." in name.split("/") or name.startswith("/"):
        raise DataError(f"XCom: {name!r:.200} is no name below {_root()}")
    return name


def _root() -> str:
    use_connection()
    return join(settings().store, "xcom")
