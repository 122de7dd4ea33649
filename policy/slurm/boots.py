# SPDX-License-Identifier: Apache-2.0
"""Boot times of nodes, seldom asked for and only for a few nodes: readings do not have them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from policy.formats.errors import SlurmError
from policy.slurm.by_command import json_records
from policy.slurm.by_command.command import run_command
from policy.slurm.by_command.job_json import Number


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    boot_time: Number = field(default_factory=Number)


@dataclass(frozen=True, slots=True)
class _Answer:
    nodes: list[_Node]


def boot_times(names: Iterable[str], run: Callable[..., bytes] = run_command) -> dict[str, int]:
    """Returns boot times in seconds since 1970 by node; a node that has not reported one is left out."""
    try:
        nodes = json_records.read(_Answer, run("scontrol", "show", "node", ",".join(names), "--json")).nodes
    except ValueError as problem:
        raise SlurmError(f"Slurm's JSON of nodes has another form than Berth knows: {problem}") from None
    return {node.name: node.boot_time.number for node in nodes if node.boot_time.number > 0}
