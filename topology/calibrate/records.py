# SPDX-License-Identifier: Apache-2.0
"""Files of JSON lines to which programs append: the first line names the form, each other one is a record.

A record becomes a dataclass: each value has to fit its field, numbers are finite and not below 0. Standard library
only: compute nodes write such files.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from topology.errors import TopologyFileError

_LONGEST_LINE = 1 << 20
T = TypeVar("T")


def records(lines: Iterable[str], form: str, source: str) -> Iterator[tuple[str, object]]:
    """Yields each object after the first, with the place to name in an error about it."""
    head = {"format": form}
    begun = False
    for number, line in enumerate(lines, 1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise TopologyFileError(f"{where}: it is not JSON ({error.msg}); take the line out") from error
        if begun:
            yield where, values
        elif values != head:
            raise TopologyFileError(f"{where}: it should be {json.dumps(head)}")
        begun = True
    if not begun:
        raise TopologyFileError(f"{source}: line 1 should be {json.dumps(head)}, not nothing")


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """Returns the whole lines of a file; a last one that was never finished is left out."""
    source = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TopologyFileError(f"cannot read {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TopologyFileError(f"{source}: not a file of {what}: it is not UTF-8 text") from error
    return text[: text.rfind("\n") + 1].splitlines()


def append_lines(
    path: str | os.PathLike[str], form: str, lines: Iterable[str], mode: int = 0o666, *, sync: bool = False
) -> None:
    """Adds lines, with `sync` on disk; begins the file if there is none, and cuts off a last line without an end."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        begun = max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE)
        file.seek(begun)
        whole = begun + file.read().rfind(b"\n") + 1
        file.truncate(whole)
        head = [] if whole else [json.dumps({"format": form})]
        file.write("".join(f"{line}\n" for line in [*head, *lines]).encode())
        if sync:
            file.flush()
            os.fsync(file.fileno())


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def made(kind: type[T], values: object, where: str) -> T:
    """Makes an object of this kind, with all of its parts."""
    known = _hints(kind)
    if not isinstance(values, dict):
        raise TopologyFileError(f"{where}: a {kind.__name__} is an object with {', '.join(known)}")
    for name in values.keys() - known.keys():
        near = difflib.get_close_matches(name, known, 1)
        raise TopologyFileError(f'{where}: unknown key "{name}"' + (f', did you mean "{near[0]}"?' if near else ""))
    parts = {name: _fitting(known[name], value, where, name) for name, value in values.items()}
    try:
        return kind(**parts)
    except TypeError as error:
        missing = ", ".join(sorted(name for name in known if name not in values))
        raise TopologyFileError(f"{where}: a {kind.__name__} lacks some of {missing}") from error


def _fitting(hint: Any, value: Any, where: str, name: str) -> Any:
    if is_dataclass(hint):
        return made(hint, value, where)  # type: ignore[arg-type]
    kinds, form = get_args(hint), get_origin(hint)
    if form is tuple and isinstance(value, list):
        return tuple(_fitting(kinds[0], one, where, name) for one in value)
    wanted = (int, float) if hint is float else hint if form is None else kinds
    fits = value in kinds if form is Literal else form is not tuple and isinstance(value, wanted)
    if not fits or isinstance(value, bool) or (isinstance(value, int | float) and not 0 <= value < math.inf):
        raise TopologyFileError(f"{where}, key {name}: {str(value)[:40]} does not fit")
    return value
