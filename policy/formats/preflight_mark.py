"""The pre-flight mark in a segment (docs/preflight.md): `preflight=ID` in a waiting job, `run` in a pre-flight."""

import re
from collections.abc import Mapping

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


def is_value(value: str) -> bool:
    """Tells whether a submission's value is a mark."""
    return bool(_VALUE.fullmatch(value))
