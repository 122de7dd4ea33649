# SPDX-License-Identifier: Apache-2.0
"""Finds links that are slower than the same links of other nodes: a lost lane, a wrong slot, a bad bridge."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from topology.calibrate.runs import Visit

_SLOW = 0.90
"""Part of the same link's rate on other nodes; a link below it is slow."""
_LEAST_NODES = 4
_RECENT, _TWICE = 3, 2
"""Slow in two of the last three visits: a copy may meet other traffic once."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One GPU's link to the host or to another GPU."""

    node: str
    position: int
    uuid: str
    kind: str
    peer: int | None
    gb_per_s: float
    usual: float
    visits: int
    """Number of the last visits that showed it."""
    of: int

    def __str__(self) -> str:
        where = {"to-host": "to the host", "to-device": "from the host"}.get(self.kind, f"from GPU {self.peer}")
        return (
            f"copies {where} at {self.gb_per_s:.1f} GB/s, {self.usual:.1f} GB/s on its peers, "
            f"in {self.visits} of {self.of} visits"
        )


def slow_links(visits: Iterable[Visit]) -> tuple[SlowLink, ...]:
    """Returns links below nine tenths of the same link (model, positions) on other nodes."""
    seen: dict[tuple[str, str, int, int | None], dict[tuple[str, str], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for visit in sorted(visits, key=lambda one: one.at):
        for gpu in visit.gpus:
            for link in gpu.links:
                seen[gpu.model, link.kind, gpu.position, link.peer][visit.node, gpu.uuid].append(link.gb_per_s)
    found = []
    for (_, kind, position, peer), gpus in seen.items():
        if len(gpus) < _LEAST_NODES:
            continue
        usual = median(median(rates) for rates in gpus.values())
        for (node, uuid), rates in gpus.items():
            recent = rates[-_RECENT:]
            slow = [rate for rate in recent if rate < _SLOW * usual]
            if len(slow) >= _TWICE:
                found.append(SlowLink(node, position, uuid, kind, peer, median(slow), usual, len(slow), len(recent)))
    return tuple(
        sorted(found, key=lambda one: (one.node, one.position, one.kind, -1 if one.peer is None else one.peer))
    )
