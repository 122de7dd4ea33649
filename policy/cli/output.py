"""Writes output for people and for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA_VERSION = 1


def print_json(values: Mapping[str, Any]) -> None:
    """Prints one JSON object, with the version of its shape."""
    sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, **values}, indent=2) + "\n")


def print_table(rows: list[tuple[str, str]]) -> None:
    """Prints names and values in two columns."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        sys.stdout.write(f"{name:<{width}}  {value}\n")


def some(names: Sequence[str]) -> str:
    """Names the first of many nodes.

    >>> some(["n1", "n2"]), some([f"n{number}" for number in range(7)])
    ('n1, n2', 'n0, n1, n2, n3, n4 and 2 more')
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
