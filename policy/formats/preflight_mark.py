"""What a job's segment says of pre-flights (docs/preflight.md): `preflight=ID` of the job that waits, `run` of one."""

import re
from collections.abc import Mapping

from policy.formats import segment

KEY = "preflight"
IS_ONE = "run"

_VALUE = re.compile(r"run|[1-9][0-9]{0,9}")


def first(values: Mapping[str, str] | None) -> int | None:
    """The pre-flight on which a job depends; None where it has none.

    >>> first({"preflight": "4711"}), first({"preflight": "run"}), first(None)
    (4711, None, None)
    """
    value = (values or {}).get(KEY, "")
    return int(value) if value.isascii() and value.isdigit() else None


def is_one(values: Mapping[str, str] | None) -> bool:
    """Whether a job is a pre-flight."""
    return (values or {}).get(KEY) == IS_ONE


def kept(reply: Mapping[str, str], value: str) -> dict[str, str]:
    """A reply whose segment says so too; one without a segment, or full to the brim, stays as it is."""
    values = segment.fields(f"[berth/1 {reply['segment']}]") if "segment" in reply else None
    if values is None or not _VALUE.fullmatch(value):
        return dict(reply)
    body = segment.body({**values, KEY: value})
    return {**reply, "segment": body} if len(body) <= segment.MAX_BODY else dict(reply)
