# SPDX-License-Identifier: Apache-2.0
"""Reads Slurm's JSON as dataclasses: from each object the fields that a class names, with their types.

It uses only the standard library: login nodes have no other package.
"""

import json
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read(kind: type[T], data: bytes) -> T:
    """Reads one JSON text as a dataclass; raises ValueError with the path of a value of another form.

    Fields that the class does not name are ignored. Fields of the class may be texts, numbers, truth values, lists,
    other such classes, or unions of these.
    """
    # Slurm passes on whatever bytes a user wrote.
    value: T = _read(kind, json.loads(data.decode("utf-8", "surrogateescape")), "$")
    return value


def read_each(kind: type[T], data: bytes, name: str) -> tuple[list[T], list[str]]:
    """Reads the list of this name in a JSON object; returns the readable entries, and a problem for each other one."""
    answer = json.loads(data.decode("utf-8", "surrogateescape"))
    entries = answer.get(name) if type(answer) is dict else None
    if type(entries) is not list:
        raise ValueError(f"$ has no list {name}")
    found: list[T] = []
    problems: list[str] = []
    for place, entry in enumerate(entries):
        try:
            found.append(_read(kind, entry, f"$.{name}[{place}]"))
        except ValueError as problem:
            problems.append(str(problem))
    return found, problems


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (one.name, hints[one.name], one.default is MISSING and one.default_factory is MISSING) for one in fields(kind)
    )


def _read(kind: Any, value: Any, path: str) -> Any:
    # JSON's true is a Python int too.
    if type(value) is kind:
        return value
    if get_origin(kind) is list and type(value) is list:
        [inner] = get_args(kind)
        return [_read(inner, one, f"{path}[{i}]") for i, one in enumerate(value)]
    if isinstance(kind, type) and is_dataclass(kind) and type(value) is dict:
        return kind(**_values(kind, value, path))
    if isinstance(kind, UnionType):
        for one in get_args(kind):
            if type(value) is (get_origin(one) or one):
                return _read(one, value, path)
    raise ValueError(f"{path} is a {type(value).__name__}, expected {kind if get_args(kind) else kind.__name__}")


def _values(kind: Any, found: dict[str, Any], path: str) -> dict[str, Any]:
    values = {}
    for name, hint, required in _fields(kind):
        if name in found:
            values[name] = _read(hint, found[name], f"{path}.{name}")
        elif required:
            raise ValueError(f"{path} has no {name}")
    return values
