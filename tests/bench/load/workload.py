# SPDX-License-Identifier: Apache-2.0
"""Reads a workload: tests/load/*.yaml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]

from policy.formats.errors import BerthError, nearest
from topology import machines

T = TypeVar("T")


class WorkloadError(BerthError):
    """A workload file has a fault, in one sentence."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one machine."""

    machine: str
    nodes: int


@dataclass(frozen=True, slots=True)
class JobSize:
    """A size of jobs, and how often it is drawn."""

    gpus: int
    nodes: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Jobs that wait at the beginning."""

    jobs: int = 0
    arrays: int = 0
    tasks_each: int = 0


@dataclass(frozen=True, slots=True)
class Bursts:
    """Submissions at once, by several clients, again and again."""

    submissions: int
    clients: int
    every_s: float


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of a run; one that is left out limits nothing."""

    hook_p99_over_echo_ms: float | None = None
    pass_p99_ms: float | None = None
    notice_p99_ms: float | None = None
    rss_mb: float | None = None
    rss_growth_mb_per_minute: float | None = None
    burst_seen_s: float | None = None
    lock_ms_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A whole file."""

    about: str
    seconds: float
    cluster: tuple[NodeGroup, ...]
    sizes: tuple[JobSize, ...]
    waiting: Queue = Queue()
    ends_per_second: float = 0.0
    arrivals_per_second: float = 0.0
    bursts: Bursts | None = None
    keep_ended_s: float = 30.0
    """Slurm's MinJobAge."""
    seed: int = 1
    thresholds: Thresholds = field(default_factory=Thresholds)


def load(path: Path) -> Workload:
    """Reads a file; a WorkloadError says what is wrong with it, and where."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise WorkloadError(f"{path}: there is no such workload; there are {known}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise WorkloadError(f"{path}: cannot be read as YAML: {' '.join(str(problem).split())}") from None
    return _checked(Workload, content, str(path), "the file")


def _checked(kind: type[T], content: Any, path: str, where: str) -> T:
    """Makes an object of a mapping with exactly its keys; each value has its field's type, and is not negative."""
    if not isinstance(content, Mapping):
        raise WorkloadError(f"{path}: {where} has to be a table of keys and values, not {content!r}")
    fields = {one.name: one for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in content:
        if key not in fields:
            raise WorkloadError(f"{path}: {where} has an unknown key {key!r}{nearest(str(key), fields)}")
    missing = (dataclasses.MISSING,) * 2
    for name, one in fields.items():
        if name not in content and (one.default, one.default_factory) == missing:
            raise WorkloadError(f"{path}: {where} lacks the key {name!r}")
    values = {key: _value(str(fields[key].type), key, value, path) for key, value in content.items()}
    return kind(**values)


_TABLES: Mapping[str, type[Any]] = {"Queue": Queue, "Bursts | None": Bursts, "Thresholds": Thresholds}
_LISTS: Mapping[str, type[Any]] = {"tuple[NodeGroup, ...]": NodeGroup, "tuple[JobSize, ...]": JobSize}


def _value(kind: str, key: str, value: Any, path: str) -> Any:
    if kind in _TABLES:
        return _checked(_TABLES[kind], value, path, key)
    if kind in _LISTS:
        if not isinstance(value, list) or not value:
            raise WorkloadError(f"{path}: {key} has to be a list with one entry at least, not {value!r}")
        return tuple(_checked(_LISTS[kind], one, path, f"{key}, entry {at},") for at, one in enumerate(value, 1))
    if kind == "str":
        if not isinstance(value, str):
            raise WorkloadError(f"{path}: {key} has to be a text, not {value!r}")
        if key == "machine" and value not in machines.names():
            known = machines.names()
            raise WorkloadError(f"{path}: there is no machine {value!r}{nearest(value, known)}")
        return value
    number = isinstance(value, int) if kind == "int" else isinstance(value, (int, float))
    if isinstance(value, bool) or not number or value < 0:
        wanted = "a whole number" if kind == "int" else "a number"
        raise WorkloadError(f"{path}: {key} has to be {wanted} of 0 or more, not {value!r}")
    return value
