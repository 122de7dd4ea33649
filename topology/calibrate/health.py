# SPDX-License-Identifier: Apache-2.0
"""Lists the GPUs and nodes that stand out, with evidence and advice for an admin. Drains nothing."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from topology.calibrate.runs import Verdict
from topology.calibrate.statistics import Calibration, Estimate, SpeedChange


class Advice(StrEnum):
    """The advised action, the most urgent first."""

    DRAIN = "drain and diagnose"
    HOST = "look at the host"
    COOLING = "look at cooling and power"
    LINKS = "look at its links"
    APART = "keep out of wide jobs"
    AGAIN = "measure again"


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


_DRAIN_FROM, _APART_FROM = 1.15, 1.05
_LEAST_RUNS = 3
"""Before a drain is proposed."""
_SURE, _MAYBE = 0.99, 0.05
_OLD_DAYS = 90.0
_RECENT = 3
"""Visits in which something must be wrong twice to be more than chance."""

_HOST: tuple[Verdict, ...] = ("waiting",)
_HEAT: tuple[Verdict, ...] = ("throttled",)


def watch_list(calibration: Calibration) -> tuple[Watched, ...]:
    """Returns all outliers, the most urgent first; a GPU is listed once, with all evidence against it."""
    changes = _by_gpu(calibration.changes)
    limits = _whiskers(calibration.estimates)
    found: dict[tuple[str, int | None, str, Advice], list[str]] = defaultdict(list)
    for one in calibration.estimates:
        place = one.place
        for advice, evidence in _judged(one, limits[one.app_class]):
            steps = [str(change) for change in changes.get((place.node, place.position, one.app_class), ())]
            found[place.node, place.position, place.uuid, advice] += [evidence, *steps]
    for (place, _), told in calibration.told.items():
        for advice, evidence in _troubled([wrong for _, wrong in told][-_RECENT:]):
            # A problem of the host affects all its GPUs.
            whole = advice is Advice.HOST
            key = (place.node, None if whole else place.position, "" if whole else place.uuid, advice)
            if evidence not in found[key]:
                found[key].append(evidence)
    for link in calibration.links:
        found[link.node, link.position, link.uuid, Advice.LINKS].append(str(link))
    order = list(Advice)
    listed = [Watched(*key, "; ".join(dict.fromkeys(some))) for key, some in found.items()]
    listed.sort(key=lambda one: (order.index(one.advice), one.node, -1 if one.position is None else one.position))
    return tuple(_worst(listed))


def _worst(listed: Sequence[Watched]) -> Iterator[Watched]:
    """Yields the most urgent entry of each GPU, with the evidence of its other entries."""
    by_gpu: dict[tuple[str, int | None], list[Watched]] = defaultdict(list)
    for one in listed:
        by_gpu[one.node, one.position].append(one)
    for first, *others in by_gpu.values():
        evidence = "; ".join([first.evidence, *(one.evidence for one in others)])
        yield Watched(first.node, first.position, first.uuid, first.advice, evidence)


def _judged(one: Estimate, whisker: float) -> Iterator[tuple[Advice, str]]:
    """Yields the advice that the score gives: by how much, and how surely, it is an outlier among its peers."""
    if not one.runs:
        yield Advice.AGAIN, f"no {one.app_class} run of {one.left_out} counts"
        return
    told = f"{one.app_class} score {one.score:.3f} +- {one.error:.3f} of {one.runs} runs, {one.peers} peers"
    if one.score >= _DRAIN_FROM and one.slow >= _SURE and one.runs >= _LEAST_RUNS:
        yield Advice.DRAIN, told
    elif one.score > max(_APART_FROM, whisker) and one.outlier > 0.5 and one.runs >= _LEAST_RUNS:
        yield Advice.APART, told
    elif one.slow > _MAYBE:
        yield Advice.AGAIN, f"{told}; slow with probability {one.slow:.0%}"
    elif one.age_days > _OLD_DAYS:
        yield Advice.AGAIN, f"the last {one.app_class} run is {one.age_days:.0f} days old"


def _troubled(recent: Sequence[Verdict]) -> Iterator[tuple[Advice, str]]:
    """Yields the advice that the last visits give beside the score."""
    if (count := sum(one in _HOST for one in recent)) >= 2:
        yield Advice.HOST, f"its GPUs waited in {count} of the last {len(recent)} visits: full clock, little power"
    if (count := sum(one in _HEAT for one in recent)) >= 2:
        yield Advice.COOLING, f"slowed down by heat or power supply in {count} of the last {len(recent)} visits"
    if (count := sum(one == "xid" for one in recent)) >= 2:
        yield Advice.DRAIN, f"driver errors (Xid) in {count} of the last {len(recent)} visits"


def _whiskers(estimates: Iterable[Estimate]) -> dict[str, float]:
    """Returns by class the third quartile plus 1.5 times the distance of the quartiles."""
    scores: dict[str, list[float]] = defaultdict(list)
    for one in estimates:
        scores[one.app_class].append(one.score)
    found = {}
    for app_class, some in scores.items():
        low, high = np.percentile(some, (25, 75))
        found[app_class] = float(high + 1.5 * (high - low))
    return found


def _by_gpu(changes: Iterable[SpeedChange]) -> dict[tuple[str, int, str], list[SpeedChange]]:
    found: dict[tuple[str, int, str], list[SpeedChange]] = defaultdict(list)
    for change in changes:
        if change.place:
            found[change.node, change.place.position, change.app_class].append(change)
    return found
