# SPDX-License-Identifier: Apache-2.0
"""Lists the GPUs and nodes that stand out, with evidence and advice for an admin. Drains nothing."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topology.calibrate.runs import Verdict
from topology.calibrate.statistics import Calibration


class Advice(StrEnum):
    """The advised action, the most urgent first."""

    DRAIN = "drain and diagnose"
    HOST = "look at the host"
    COOLING = "look at cooling and power"
    LINKS = "look at its links"


@dataclass(frozen=True, slots=True)
class Watched:
    """An entry of the watch list."""

    node: str
    position: int | None
    """None: the whole node."""
    uuid: str
    advice: Advice
    evidence: str
    """One or more sentences with figures."""

    def drain(self) -> str:
        """Returns the command that an admin may want to run; empty where none is proposed."""
        if self.advice is not Advice.DRAIN:
            return ""
        who = "" if self.position is None else f" GPU {self.position}"
        return f'scontrol update NodeName={self.node} State=DRAIN Reason="berth:{who} {self.evidence.split(";")[0]}"'


_DRAIN_FROM = 1.15
_LEAST_RUNS = 3
"""Before a drain is proposed."""
_SURE = 0.99
_RECENT = 3
"""Visits in which something must be wrong twice to be more than chance."""


def watch_list(calibration: Calibration) -> tuple[Watched, ...]:
    """Returns what an admin should look after, the most urgent first; a GPU is listed once, with all evidence."""
    found: dict[tuple[str, int | None, str], list[tuple[Advice, str]]] = defaultdict(list)
    for one in calibration.estimates:
        if one.score >= _DRAIN_FROM and one.slow >= _SURE and one.runs >= _LEAST_RUNS:
            gpu, of = one.place, f"{one.runs} runs, {one.peers} peers"
            steps = [str(step) for step in calibration.changes if (step.place, step.app_class) == (gpu, one.app_class)]
            score = f"{one.app_class} score {one.score:.3f} +- {one.error:.3f} of {of}"
            found[gpu.node, gpu.position, gpu.uuid] += [(Advice.DRAIN, text) for text in (score, *steps)]
    for (place, _), told in calibration.told.items():
        for advice, evidence in _troubled([wrong for _, wrong in told][-_RECENT:]):
            # A problem of the host affects all its GPUs.
            whole = advice is Advice.HOST
            found[place.node, None if whole else place.position, "" if whole else place.uuid].append((advice, evidence))
    for link in calibration.links:
        found[link.node, link.position, link.uuid].append((Advice.LINKS, str(link)))
    order = list(Advice)
    listed = []
    for (node, position, uuid), advised in found.items():
        some = sorted(dict.fromkeys(advised), key=lambda one: order.index(one[0]))
        listed.append(Watched(node, position, uuid, some[0][0], "; ".join(evidence for _, evidence in some)))
    listed.sort(key=lambda one: (order.index(one.advice), one.node, -1 if one.position is None else one.position))
    return tuple(listed)


def _troubled(recent: Sequence[Verdict]) -> Iterator[tuple[Advice, str]]:
    """Yields the advice that the last visits give beside the score."""
    if (count := recent.count("waiting")) >= 2:
        yield Advice.HOST, f"its GPUs waited in {count} of the last {len(recent)} visits: full clock, little power"
    if (count := recent.count("throttled")) >= 2:
        yield Advice.COOLING, f"slowed down by heat or power supply in {count} of the last {len(recent)} visits"
    if (count := recent.count("xid")) >= 2:
        yield Advice.DRAIN, f"driver errors (Xid) in {count} of the last {len(recent)} visits"
