"""How a job ended, and how often it may still be requeued."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What Slurm says of a job that is over."""

    id: int
    name: int | str
    """How Slurm names this job alone: of an array's task `ARRAY_TASK`, as its number may be the whole array's."""
    state: str
    values: Mapping[str, str] | None
    """Its segment."""
    partition: str = ""
    nodes: tuple[str, ...] = ()
    started: int = 0
    ended: int = 0
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    """How often Slurm has requeued it."""
    may_requeue: bool = True
    """Whether its user lets Slurm requeue it, and it has a script."""
    logs: tuple[str, ...] = ()
    """Where its output went; its user's text."""


_REQUEUES = 5
"""Slurm's own default of max_batch_requeue."""


_MAX_REQUEUES = re.compile(r"\bmax_batch_requeue=(\d{1,6})")


def requeues_left(found: Outcome, config: Mapping[str, str]) -> int:
    """How often Slurm requeues a job yet before it holds it."""
    match = _MAX_REQUEUES.search(config.get("SchedulerParameters", ""))
    return (int(match[1]) if match else _REQUEUES) - found.restarts
