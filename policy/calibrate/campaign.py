# SPDX-License-Identifier: Apache-2.0
"""Keeps which nodes a campaign is to measure and how far each is: `berth-campaign/1` (docs/admin/calibration.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, get_args

from policy.formats.errors import FormatError

FORMAT = "berth-campaign/1"
State = Literal["waiting", "running", "done", "failed"]
_HOLD_S, _MOST_HOLD_S = 60.0, 1_800.0
"""Seconds for which a node is left alone after it made way: twice as long each time, up to the most."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node of a campaign; times are seconds since 1970."""

    state: State = "waiting"
    started: float = 0.0
    """Start of the last measurement."""
    tries: int = 0
    """Measurements that went wrong."""
    made_way: int = 0
    """Measurements that were broken off for a job."""
    not_before: float = 0.0
    told: str = ""
    """Result of the last measurement."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """All of it; every change is a new one."""

    started: float
    nodes: Mapping[str, NodeState]

    @property
    def name(self) -> str:
        """Returns what its jobs are called."""
        return f"berth-calibrate-{self.started:.0f}"

    @property
    def over(self) -> bool:
        """Tells whether nothing is left to do."""
        return all(one.state in {"done", "failed"} for one in self.nodes.values())

    def count(self, state: State) -> int:
        """Nodes in this state."""
        return Counter(one.state for one in self.nodes.values())[state]

    def start(self, node: str, now: float) -> Campaign:
        """A measurement begins."""
        return self._with(node, replace(self.nodes[node], state="running", started=now))

    def done(self, node: str, told: str) -> Campaign:
        """A measurement is in."""
        return self._with(node, replace(self.nodes[node], state="done", told=told))

    def fail(self, node: str, told: str, now: float, most_tries: int) -> Campaign:
        """A measurement went wrong; the node comes up again later, unless it was tried often enough."""
        old = self.nodes[node]
        state: State = "failed" if old.tries + 1 >= most_tries else "waiting"
        return self._with(node, replace(old, state=state, tries=old.tries + 1, not_before=now + _HOLD_S, told=told))

    def make_way(self, node: str, told: str, now: float) -> Campaign:
        """A measurement is broken off through no fault of the node's."""
        old = self.nodes[node]
        hold = min(_HOLD_S * 2 ** min(old.made_way, 9), _MOST_HOLD_S)
        return self._with(
            node, replace(old, state="waiting", made_way=old.made_way + 1, not_before=now + hold, told=told)
        )

    def resume(self, measured: Mapping[str, float]) -> Campaign:
        """After an interruption: what ran is lost, unless its visit (the last of each node, by time) was kept."""
        nodes = dict(self.nodes)
        for node, one in nodes.items():
            if one.state not in {"done", "failed"}:
                kept = measured.get(node, 0.0) >= self.started
                nodes[node] = replace(one, state="done" if kept else "waiting", not_before=0.0)
        return replace(self, nodes=nodes)

    def _with(self, node: str, state: NodeState) -> Campaign:
        return replace(self, nodes={**self.nodes, node: state})


def begin(nodes: Iterable[str], now: float) -> Campaign:
    """A new campaign."""
    return Campaign(float(int(now)), {node: NodeState() for node in nodes})


def encode(campaign: Campaign) -> str:
    """The campaign's file."""
    plain = NodeState()
    nodes = {
        name: {key: value for key, value in asdict(one).items() if key == "state" or value != getattr(plain, key)}
        for name, one in campaign.nodes.items()
    }
    return json.dumps({"format": FORMAT, "started": campaign.started, "nodes": nodes}, indent=1) + "\n"


def decode(text: str, source: str = "the campaign's file") -> Campaign:
    """Read it back; an error says what is wrong and what to do."""
    try:
        values = json.loads(text)
        _check_format(values["format"])
        nodes = {str(name): NodeState(**one) for name, one in values["nodes"].items()}
        for name, one in nodes.items():
            _check(name, one)
        return Campaign(float(values["started"]), nodes)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        what = f"it lacks {problem}" if isinstance(problem, KeyError) else problem
        raise FormatError(f"{source}: {what}; move it away to begin a new campaign") from None


def _check_format(found: object) -> None:
    if found != FORMAT:
        raise ValueError(f"its format is {found}, not {FORMAT}")


def _check(name: str, one: NodeState) -> None:
    known = {field.name: str(field.type) for field in fields(NodeState)}
    kinds = {"State": str, "str": str, "int": int, "float": (int, float)}
    wrong = [key for key, kind in known.items() if not isinstance(getattr(one, key), kinds[kind])]  # type: ignore[arg-type]
    if wrong or one.state not in get_args(State):
        raise ValueError(f"node {name} has a wrong {wrong[0] if wrong else 'state'}")
