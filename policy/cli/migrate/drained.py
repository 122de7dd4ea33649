"""Keeps jobs from nodes while their layout changes, and gives back only those that nobody else keeps from jobs.

The reason of a drain tells whose it is. Each step looks at it anew: hours may lie between a plan and its last step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policy.cli.output import some
from policy.formats.errors import BerthError
from policy.formats.hostlist import fold

__all__ = ["DrainState", "NodeUpdate", "drain", "node_states", "resume"]

REASON = "berth migrate"
_AWAY = "Not responding"
"""Slurm's own reason for a node whose slurmd is away; it may come back at any time."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """A node's state as `scontrol show node` has it, and the reason that somebody gave for it."""

    state: str
    reason: str = ""

    @property
    def closed(self) -> bool:
        """True if no job starts there until somebody resumes the node."""
        words = set(re.findall(r"[A-Z_]+", self.state))
        return bool(words & {"DRAIN", "FAIL"}) or ("DOWN" in words and self.reason != _AWAY)

    @property
    def ours(self) -> bool:
        """True if `berth migrate` drained it, and nobody has drained it since."""
        return self.closed and self.reason == REASON


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """One update of nodes; `command` is empty where none is due, `told` names those that stay as they are."""

    command: tuple[str, ...]
    told: tuple[str, ...]


def node_states(lines: Iterable[str]) -> dict[str, DrainState]:
    """Returns the states of the nodes in the lines of `scontrol show node --oneliner`."""
    found = {}
    for line in lines:
        name, state = re.match(r"NodeName=(\S+)", line), re.search(r" State=(\S+)", line)
        reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?\s*$", line)
        if name and state:
            found[name[1]] = DrainState(state[1], reason[1] if reason else "")
    return found


def drain(nodes: Sequence[str], states: dict[str, DrainState]) -> NodeUpdate:
    """Returns the update that drains the open ones of these nodes."""
    due = [node for node in nodes if not _of(node, states).closed]
    return _turn(due, nodes, states, "State=DRAIN", f"Reason={REASON}")


def resume(nodes: Sequence[str], states: dict[str, DrainState]) -> NodeUpdate:
    """Returns the update that resumes those of these nodes that `drain` drained."""
    due = [node for node in nodes if _of(node, states).ours]
    return _turn(due, nodes, states, "State=RESUME")


def _turn(due: Sequence[str], nodes: Sequence[str], states: dict[str, DrainState], *words: str) -> NodeUpdate:
    command = ("scontrol", "update", f"NodeName={fold(due)}", *words) if due else ()
    others = [node for node in nodes if _of(node, states).closed and not _of(node, states).ours]
    told = (f"{node} stays {states[node].state}: {states[node].reason or 'no reason is given'}" for node in others)
    return NodeUpdate(command, tuple(told))


def _of(node: str, states: dict[str, DrainState]) -> DrainState:
    if node not in states:
        raise BerthError(f"Slurm has no node {node}; it has {some(list(states)) or 'none'}")
    return states[node]
