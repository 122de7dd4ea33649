# SPDX-License-Identifier: Apache-2.0
"""Counts the reasons for which jobs waited.

For a job that berthd planned, the reason is the last one that berthd gave. Slurm's accounting keeps only the last
reason other than Priority and Resources, and no duration: a limit there counts for the whole wait.

All other waits are for order or room, which Slurm does not tell apart. For those, the report counts the minutes in
which enough GPUs were idle.
"""

import re
from array import array
from collections import Counter, defaultdict
from itertools import accumulate
from typing import Any

from policy.report.counts.spread import Spread
from policy.report.rows import JobRun
from policy.report.site import SIZES, size_of

DELAY_S = 60
"""Seconds; a shorter wait is no delay, because schedulers need that long themselves."""
ORDER_OR_ROOM = "order_or_room"
_PROMISED = re.compile(r"\d{1,18},(\d{1,18})", re.ASCII)
_SLURMS = (
    (("Assoc", "QOS", "MaxJobsPer", "MaxSubmit", "PartitionTimeLimit", "AccountLimit"), "fair_share"),
    (("Dependency", "BeginTime", "JobArrayTaskLimit"), "dependency"),
    (("JobHeld", "job_requeued_in_held"), "held"),
    (("Reservation",), "reservation"),
    (("ReqNodeNotAvail", "BootFail", "PartitionDown", "PartitionInactive", "NodeDown"), "node"),
    (("Licenses", "BurstBuffer", "Cleaning"), "other"),
)


def kind_of(run: JobRun) -> tuple[str, str]:
    """Returns the reason for which a run waited, and the source of the reason."""
    if because := run.said.get("because"):
        return because, "berthd"
    for starts, kind in _SLURMS:
        if run.reason.startswith(starts):
            return kind, "slurm"
    return ORDER_OR_ROOM, "nobody"


class WaitCounts:
    """Counts delays by size and reason."""

    def __init__(self) -> None:
        self._times = {size: Spread() for size in SIZES}
        self._delays: dict[str, Counter[tuple[str, str]]] = {size: Counter() for size in SIZES}
        self._seconds: dict[str, Counter[tuple[str, str]]] = {size: Counter() for size in SIZES}
        self._untold: defaultdict[int, tuple[array[int], array[int]]] = defaultdict(lambda: (array("L"), array("L")))
        """By GPUs: first and last minutes of delays without a reason.

        Only this grows with the number of jobs, by 16 bytes each.
        """
        self._promised, self._late = Counter[str](), Counter[str]()
        self.never_started = 0

    def add(self, run: JobRun) -> None:
        """Adds a finished run."""
        if run.start is None:
            self.never_started += 1
            return
        size = size_of(run.gpus)
        self._times[size].add(run.wait_s)
        if run.wait_s < DELAY_S:
            return
        if promised := _PROMISED.fullmatch(run.said.get("promised", "")):
            self._promised[size] += 1
            # Slurm tells whole seconds.
            self._late[size] += run.start > int(promised[1]) + 1
        why = kind_of(run)
        self._delays[size][why] += 1
        self._seconds[size][why] += round(run.wait_s)
        if why[0] == ORDER_OR_ROOM:
            begins, ends = self._untold[run.gpus]
            begins.append(int(run.eligible // 60))
            ends.append(int(run.start // 60))

    def figures(self, busy: "BusyGpus", capacity: int) -> dict[str, Any]:
        """Returns the figures of all sizes that occurred."""
        idle = self._enough_idle(busy, capacity)
        return {
            size: {
                "runs": times.count,
                **times.figures(),
                "delays": sum(self._delays[size].values()),
                "promised": self._promised[size],
                "late": self._late[size],
                "reasons": [
                    {
                        "reason": kind,
                        "by": by,
                        "delays": count,
                        "hours": round(self._seconds[size][kind, by] / 3_600, 2),
                    }
                    for (kind, by), count in self._delays[size].most_common()
                ],
                "enough_idle_hours": round(idle[size] / 60, 2),
            }
            for size, times in self._times.items()
            if times.count
        }

    def _enough_idle(self, busy: "BusyGpus", capacity: int) -> Counter[str]:
        """Returns the minutes of unexplained delays in which as many GPUs were idle as the job requested, by size."""
        found: Counter[str] = Counter()
        first, counts = busy.minutes()
        for gpus, (begins, ends) in self._untold.items():
            # `enough` counts up to each minute those with enough idle GPUs, so one pass serves all jobs of a size.
            enough = [0, *accumulate(capacity - taken >= gpus for taken in counts)]
            last = len(counts)
            for begin, end in zip(begins, ends, strict=True):
                found[size_of(gpus)] += (
                    enough[min(last, max(0, end - first))] - enough[min(last, max(0, begin - first))]
                )
        return found


class BusyGpus:
    """GPUs held by jobs, minute by minute."""

    def __init__(self) -> None:
        self._changes: Counter[int] = Counter()

    def add(self, run: JobRun, until: float) -> None:
        """Adds a run that is finished, or that still runs at the report's end; that may be the end of a file."""
        if run.start is not None:
            self._changes[int(run.start // 60)] += run.gpus
            if (end := min(run.end or until, until)) < float("inf"):
                self._changes[int(end // 60)] -= run.gpus

    def minutes(self) -> tuple[int, list[int]]:
        """Returns the first minute, and the GPUs held in each minute from then on."""
        if not self._changes:
            return 0, []
        first, last = min(self._changes), max(self._changes)
        return first, list(accumulate(self._changes.get(minute, 0) for minute in range(first, last + 1)))
