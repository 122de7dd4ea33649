# SPDX-License-Identifier: Apache-2.0
"""Rolls the waiting queue out, to see if all jobs together end sooner where one of them lets others go first.

A plan that starts whatever fits is greedy: a job that takes a part of a node now may keep a gang from it for hours. So
the queue is list-scheduled twice over the expected ends of the running jobs: once with the job started where it would
be placed, once with the job held back until the next GPUs come free. The job lets others go first if the sum of all
completion times is less then, if it still starts by its promise (policy/plan/jobs/promise.py), both as expected and by
time limits, and if no other job comes to start later than promised by that. In the list schedule each job starts as
soon as it fits, in the order of the queue, on the fullest nodes; one that does not fit is passed. All GPUs are alike
there: with their speeds and distances it was no better (docs/results/slurm-rules.md).

Bounded work: the first `MOST_JOBS` of the queue, the first `MOST_ENDS` ends, and at most `MOST_NODES` nodes that are
free now or then; where more nodes are free, room is not scarce and nothing is held back. A caller may also bound the
`Looks` at nodes; without any left nothing is held back either.

    >>> gang = QueuedJob(1, nodes=2, gpus=4, seconds=100.0, able=(True, True))
    >>> small = QueuedJob(2, nodes=1, gpus=1, seconds=500.0, able=(True, True))
    >>> room = RoomAhead(at=0.0, free=(4, 0), ends=((10.0, (1,), 4),))
    >>> round(room.gain_of_waiting(small, (0,), 1.0, [gang, small]))
    380
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import NamedTuple

MOST_JOBS = 64
MOST_ENDS = 256
MOST_NODES = 256

_FAR = float("inf")


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A waiting job, as the list schedule sees it."""

    number: int
    nodes: int
    gpus: int
    """GPUs on each node."""
    seconds: float
    """Expected run time on ideal GPUs."""
    able: Sequence[bool]
    """For each node, whether the job may use it."""
    latest: float = _FAR
    """Time by which it has to be expected to start if it lets others go first."""
    kind: Hashable = None
    """Equal for jobs that start in the order of the queue, whatever is expected of each; None: it has no equal."""
    group: Sequence[int] | None = None
    """For each node, the group of nodes that Slurm's topology/block joins for the job; None: any nodes will do."""


class End(NamedTuple):
    """GPUs that a running job is expected to give back: on each of these nodes so many."""

    at: float
    nodes: Sequence[int]
    gpus: int


@dataclass(slots=True)
class Looks:
    """Counts the looks at nodes that list schedules may still take."""

    left: float


class Held(NamedTuple):
    """The decision that a job lets others go first."""

    gain: float
    """Seconds by which all waiting jobs together are expected to end sooner."""
    until: float
    """Time after which it is not held back again."""


class _Played(NamedTuple):
    """The sum of the completion times of all jobs, and the start of each that starts in the time looked at."""

    total: float
    starts: dict[int, float]

    def start(self, job: QueuedJob) -> float:
        """Returns the start of a job; infinite if it does not start in the time looked at."""
        return self.starts.get(job.number, _FAR)


def still_to_run(expected: float, ran: float, limit: float = _FAR) -> float:
    """Returns the seconds for which a running job is expected to run on.

    A job that has outrun its expectation runs on for as long as it has run: of processes that have run for t, half
    run for another t (Harchol-Balter and Downey, 1997).

    >>> still_to_run(600, 200), still_to_run(600, 700), still_to_run(600, 700, limit=900)
    (400, 700, 200)
    """
    return max(0.0, min(expected - ran if ran < expected else ran, limit - ran))


@dataclass(frozen=True)
class RoomAhead:
    """The free GPUs of each node now, and when more are expected to come free."""

    at: float
    free: Sequence[int]
    ends: "Sequence[End | tuple[float, Sequence[int], int]]"
    looks: Looks = field(default_factory=lambda: Looks(_FAR))

    def gain_of_waiting(
        self,
        job: QueuedJob,
        nodes: Sequence[int],
        cost: float,
        queue: Sequence[QueuedJob],
        held: AbstractSet[int] = frozenset(),
        keeps: Callable[[AbstractSet[int]], bool] = lambda _: True,
    ) -> float:
        """Returns by how many seconds the sum of all completion times falls if a job lets others go first.

        The job would start on `nodes` at this cost. `queue` has the job too, and `held` the jobs that let others go
        first in this pass already. Its equals wait with it, as none of them starts before it. The gain is 0 if the job
        would start later than it or one of them may, if any other job would by that, or if there is no telling.
        `keeps` tells whether the job starts by its promise, by time limits, if the given jobs start now instead.
        """
        queue = queue[:MOST_JOBS]
        others = [one for one in queue if one.number != job.number]
        if not self.ends or not others or len(others) == len(queue) or len(self._known) > MOST_NODES:
            return 0.0
        free, end = list(self.free), self.at + job.seconds * cost
        for node in nodes:
            free[node] -= job.gpus
        started = self._play(free, [*self._soonest, End(end, tuple(nodes), job.gpus)], others, held)
        equals = [one for one in others if one.kind is not None and one.kind == job.kind]
        with_it = held | {job.number, *(one.number for one in equals)}
        waited = self._play(list(self.free), list(self._soonest), queue, with_it)
        late = waited.start(job) > min([job.latest, *(one.latest for one in equals)])
        late = late or any(waited.start(one) > max(one.latest, started.start(one)) for one in others)
        gain = 0.0 if late or self.looks.left <= 0 else end + started.total - waited.total
        first = {number for number, start in waited.starts.items() if start <= self.at}
        return 0.0 if gain > 0.0 and not keeps(first) else gain

    @cached_property
    def _soonest(self) -> list[End]:
        return sorted((End(*end) for end in self.ends), key=lambda end: end.at)[:MOST_ENDS]

    @cached_property
    def _known(self) -> list[int]:
        """The nodes on which anything can start in the time looked at."""
        freed = {node for end in self._soonest for node in end.nodes}
        return [node for node, count in enumerate(self.free) if count or node in freed]

    def _play(self, free: list[int], ends: list[End], queue: Sequence[QueuedJob], held: AbstractSet[int]) -> _Played:
        """List-schedules the queue; `held` do not start before the first end. Jobs that never fit count at the last."""
        heapify(ends)
        now, total, left, waits, starts = self.at, 0.0, list(queue), held, dict[int, float]()
        while True:
            self.looks.left -= len(self._known) + len(left)
            room, failed, rest = sum(free[node] for node in self._known), set[tuple[int, int]](), list[QueuedJob]()
            for place, job in enumerate(left):
                if room == 0:
                    rest += left[place:]
                    break
                shape = (job.nodes, job.gpus)
                if shape in failed or job.nodes * job.gpus > room or job.number in waits:
                    rest.append(job)
                    continue
                nodes = self._place(job, free)
                if not nodes:
                    failed.add(shape)
                    rest.append(job)
                    continue
                end = now + job.seconds
                total += end
                starts[job.number] = now
                heappush(ends, End(end, nodes, job.gpus))
                room -= job.nodes * job.gpus
                for node in nodes:
                    free[node] -= job.gpus
            left, waits = rest, frozenset()
            if not left or not ends or self.looks.left <= 0:
                break
            now = ends[0].at
            while ends and ends[0].at <= now:
                done = heappop(ends)
                for node in done.nodes:
                    free[node] += done.gpus
        return _Played(total + sum(now + job.seconds for job in left), starts)

    def _place(self, job: QueuedJob, free: list[int]) -> tuple[int, ...]:
        """Returns the nodes that a job would take: the fullest on which it fits together; none if there are too few."""
        self.looks.left -= len(self._known)
        able = [node for node in self._known if free[node] >= job.gpus and job.able[node]]
        able.sort(key=free.__getitem__)
        if job.group is None:
            return tuple(able[: job.nodes]) if len(able) >= job.nodes else ()
        joined = defaultdict[int, list[int]](list)
        for node in able:
            nodes = joined[job.group[node]]
            nodes.append(node)
            if len(nodes) == job.nodes:
                return tuple(nodes)
        return ()
