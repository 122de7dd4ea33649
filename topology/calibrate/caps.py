"""Tells why a GPU is slow: at its power limit, for heat, for a low clock, or for none of these.

At the power limit the clock follows the chip: one that leaks more, or sits in warmer air, gets a lower clock for the
same power. Such a GPU is slow in work that reaches the limit and as fast as others in work that does not, so it need
not be kept from the latter. Calibration runs record clock and seconds at the limit; peers have the same limit.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from topology.calibrate.peers import GpuPlace, PeerKey, verdicts
from topology.calibrate.runs import KernelRun, Verdict, Visit, seconds_of
from topology.calibrate.statistics import Estimate

SlowBy = Literal["", "power cap only", "power cap", "heat", "low clock", "other"]
"""Empty: not slow. `power cap only`: every class that stays below the power limit is as fast as on other GPUs."""

SLOWER = 1.02
"""A score from which on a GPU counts as slower than its peers."""
_AT_CAP = 0.5
"""The part of a run at the power limit from which on the limit decides its clock."""
_EXPLAINED = 0.5
"""The part of the slowness (as a logarithm) that the clock must explain."""
_LATEST = 6
"""Runs of a GPU that count, the latest."""
_RECENT, _HOT = 3, 2
"""Visits that are looked at for heat, and how many of them must have been throttled."""


@dataclass(frozen=True, slots=True)
class CapEvidence:
    """The power limit and the clock of one GPU in runs of one class."""

    slow_by: SlowBy
    at_cap: float
    """The part of the time at the power limit, median of the runs that count."""
    clock: float
    """SM clock over the peers' median; 0: not recorded."""


def slow_by(visits: Iterable[Visit], estimates: Sequence[Estimate]) -> dict[tuple[GpuPlace, str], CapEvidence]:
    """Returns why each GPU is slow, by GPU and class, from the runs behind its estimates."""
    runs, told = _runs(visits)
    found: dict[tuple[GpuPlace, str], CapEvidence] = {}
    for one in estimates:
        which = one.place, one.app_class
        key, mine = runs.get(which, (None, []))
        if key is None:
            found[which] = CapEvidence(_of(one.score, 0.0, 0.0, told.get(which, [])), 0.0, 0.0)
            continue
        at_cap = median(run.capped_s / run.seconds if run.seconds else 0.0 for run in mine)
        peers = [median(run.sm_mhz for run in theirs) for known, theirs in runs.values() if known == key]
        typical, clock = median(peers), median(run.sm_mhz for run in mine)
        ratio = clock / typical if typical else 0.0
        found[which] = CapEvidence(_of(one.score, at_cap, ratio, told[which]), min(at_cap, 1.0), ratio)
    return _only_at_the_cap(found, estimates)


def _runs(
    visits: Iterable[Visit],
) -> tuple[dict[tuple[GpuPlace, str], tuple[PeerKey, list[KernelRun]]], dict[tuple[GpuPlace, str], list[Verdict]]]:
    """Returns by GPU and class its latest runs that count with what they compare with, and all verdicts in order."""
    runs: dict[tuple[GpuPlace, str], tuple[PeerKey, list[KernelRun]]] = {}
    told: dict[tuple[GpuPlace, str], list[Verdict]] = defaultdict(list)
    for key, _, visit, gpu, run, wrong in verdicts(sorted(visits, key=lambda visit: seconds_of(visit.at))):
        which = GpuPlace(visit.node, gpu.position, gpu.uuid), run.app_class
        told[which].append(wrong)
        if not wrong:
            before = runs.get(which)
            # Another kernel or limit since: only runs of the last one are compared.
            kept = before[1] if before is not None and before[0] == key else []
            runs[which] = key, [*kept, run][-_LATEST:]
    return runs, told


def _of(score: float, at_cap: float, clock: float, told: Sequence[Verdict]) -> SlowBy:
    if sum(one == "throttled" for one in told[-_RECENT:]) >= _HOT:
        return "heat"
    if score < SLOWER:
        return ""
    if clock <= 0.0 or -math.log(clock) < _EXPLAINED * math.log(score):
        return "other"
    return "power cap" if at_cap >= _AT_CAP else "low clock"


def _only_at_the_cap(
    found: dict[tuple[GpuPlace, str], CapEvidence], estimates: Sequence[Estimate]
) -> dict[tuple[GpuPlace, str], CapEvidence]:
    """Marks GPUs that were measured below the limit too, and were not slow there."""
    below: dict[GpuPlace, list[float]] = defaultdict(list)
    for one in estimates:
        if one.runs and found[one.place, one.app_class].at_cap < _AT_CAP:
            below[one.place].append(one.score)
    return {
        (place, app_class): CapEvidence("power cap only", evidence.at_cap, evidence.clock)
        if evidence.slow_by == "power cap" and below[place] and max(below[place]) < SLOWER
        else evidence
        for (place, app_class), evidence in found.items()
    }
