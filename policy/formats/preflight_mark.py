"""The pre-flight mark in a segment (docs/preflight.md): `preflight=ID` in a waiting job, `run` in a pre-flight."""

import re
from collections.abc import Mapping

from policy.formats import segment

KEY = "preflight"
IS_ONE = "run"

_VALUE = re.compile(r"run|[1-9][0-9]{0,9}")


def first(values: Mapping[str, str] | None) -> int | None:
    """Returns the pre-flight on which a job depends; None if it has none.

    >>> first({"preflight": "4711"}), first({"preflight": "run"}), first(None)
    (4711, None, None)
    """
    value = (values or {}).get(KEY, "")
    return int(value) if value.isascii() and value.isdigit() else None


def is_one(values: Mapping[str, str] | None) -> bool:
    """Tells whether a job is a pre-flight."""
    return (values or {}).get(KEY) == IS_ONE


def kept(reply: Mapping[str, str], value: str) -> dict[str, str]:
    """Returns a reply with the mark in its segment; unchanged without a segment, or if that has no room."""
    values = segment.fields(f"[berth/1 {reply['segment']}]") if "segment" in reply else None
    if values is None or not _VALUE.fullmatch(value):
        return dict(reply)
    body = segment.body({**values, KEY: value})
    return {**reply, "segment": body} if len(body) <= segment.MAX_BODY else dict(reply)
