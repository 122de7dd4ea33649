# SPDX-License-Identifier: Apache-2.0
"""Drains nodes while their layout changes, and resumes only nodes that are not drained for another reason.

The reason of a drain shows if it is Berth's. Each step reads it anew: hours may lie between a plan and its last step.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policy.cli.output import some
from policy.formats.errors import BerthError
from policy.formats.hostlist import fold

REASON = "berth migrate"
_AWAY = "Not responding"
"""Slurm's own reason for a node whose slurmd is away; it may come back at any time."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """A node's state and its reason, from `scontrol show node`."""

    state: str
    reason: str = ""

    @property
    def closed(self) -> bool:
        """True if no job starts there until the node is resumed."""
        words = set(re.findall(r"[A-Z_]+", self.state))
        return bool(words & {"DRAIN", "FAIL"}) or ("DOWN" in words and self.reason != _AWAY)

    @property
    def ours(self) -> bool:
        """True if `berth migrate` drained it, and it was not drained again since."""
        return self.closed and self.reason == REASON


def node_states(lines: Iterable[str]) -> dict[str, DrainState]:
    """Returns the states of the nodes in the lines of `scontrol show node --oneliner`."""
    found = {}
    for line in lines:
        name, state = re.match(r"NodeName=(\S+)", line), re.search(r" State=(\S+)", line)
        reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\]| (?:Comment|Extra|Instance\w+|ReservationName)=|\s*$)", line)
        if name and state:
            found[name[1]] = DrainState(state[1], reason[1] if reason else "")
    return found


def turn(nodes: Sequence[str], states: dict[str, DrainState], verb: str) -> tuple[tuple[str, ...], list[str]]:
    """Returns the update that drains the open ones of these nodes, or resumes those that `drain` has drained.

    The update is empty if none is due. With it comes a sentence for each node that is drained for another reason.
    """
    if unknown := [node for node in nodes if node not in states]:
        raise BerthError(f"Slurm has no node {some(unknown)}; it has {some(list(states)) or 'none'}")
    open_ones = [node for node in nodes if not states[node].closed]
    own = [node for node in nodes if states[node].ours]
    due, words = (open_ones, ("State=DRAIN", f"Reason={REASON}")) if verb == "drain" else (own, ("State=RESUME",))
    told = [
        f"{node} stays {states[node].state}: {states[node].reason or 'no reason is given'}"
        for node in nodes
        if states[node].closed and not states[node].ours
    ]
    return ("scontrol", "update", f"NodeName={fold(due)}", *words) if due else (), told
