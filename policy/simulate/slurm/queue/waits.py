# SPDX-License-Identifier: Apache-2.0
"""Counts why jobs wait: seconds by reason and by size of job.

Jobs of one *kind* (account, shape, level) wait for the same reason at any moment, so seconds are counted once for each
kind. A job's own wait is what its kind gathered while the job waited.
"""

from collections.abc import Mapping
from typing import NamedTuple

from policy.simulate.slurm.nodes.ledger import Ledger

REASONS = ("fair_share", "fragmentation", "capacity", "priority")
"""The reasons of a wait.

fair_share: the account is over its quota. fragmentation: enough GPUs are free, but no place at the level that the job
requires. capacity: too few GPUs are free. priority: a place is free, but the job is behind others, or does not end
before the start that is planned for them.
"""

SIZES = ("1", "2-4", "5-8", ">8")

FAIR_SHARE, FRAGMENTATION, CAPACITY, PRIORITY = range(len(REASONS))


def size_class(gpus: int) -> str:
    """Returns the size class of a job, as in Philly's tables."""
    return SIZES[0 if gpus <= 1 else 1 if gpus <= 4 else 2 if gpus <= 8 else 3]


class WaitKind(NamedTuple):
    """The properties of a job that determine the reason of its wait."""

    account: str
    """The account; empty if accounts make no difference."""
    n: int
    k: int
    level: str
    splits: tuple[tuple[int, int], ...] = ()
    """Other numbers of nodes that it may have, and the GPUs on each."""

    @property
    def gpus(self) -> int:
        """Returns the GPUs of one such job."""
        return self.n * self.k


class WaitClocks:
    """The clocks of all kinds of waiting jobs."""

    def __init__(self, ledger: Ledger, quotas: Mapping[str, int], held: Mapping[str, int]) -> None:
        self._ledger = ledger
        self._quotas = quotas
        self._held = held
        self._clocks: dict[WaitKind, list[float]] = {}
        self._waiting: dict[WaitKind, int] = {}
        self._reasons: dict[WaitKind, int] = {}
        self._since = 0.0
        self._version = -1
        self._no_place: dict[WaitKind, int] = {}
        self._seen: dict[str, tuple[WaitKind, tuple[float, ...]]] = {}
        self._own: dict[str, list[float]] = {}

    def advance(self, now: float) -> None:
        """Advances the clocks; must be called before anything changes."""
        passed = now - self._since
        self._since = now
        if passed <= 0:
            return
        for kind in self._waiting:
            self._clocks[kind][self._reason(kind)] += passed

    def come(self, job: str, kind: WaitKind) -> None:
        """Starts the wait of a job, or changes its kind from now on."""
        clock = self._clocks.setdefault(kind, [0.0] * len(REASONS))
        self._seen[job] = (kind, tuple(clock))
        self._waiting[kind] = self._waiting.get(kind, 0) + 1

    def go(self, job: str) -> None:
        """Ends the wait of a job as its kind."""
        kind, before = self._seen.pop(job)
        own = self._own.setdefault(job, [0.0] * len(REASONS))
        for reason, (now, then) in enumerate(zip(self._clocks[kind], before, strict=True)):
            own[reason] += now - then
        self._waiting[kind] -= 1
        if not self._waiting[kind]:
            del self._waiting[kind]

    def no_place(self, kind: WaitKind) -> None:
        """Notes that the policy found no place, though the numbers of free GPUs would do."""
        self._no_place[kind] = self._ledger.version
        self._reasons.pop(kind, None)

    def of(self, job: str) -> dict[str, float]:
        """Returns the seconds that a job waited, by reason."""
        return dict(zip(REASONS, self._own.get(job, [0.0] * len(REASONS)), strict=True))

    def _reason(self, kind: WaitKind) -> int:
        if self._version != self._ledger.version:
            self._version = self._ledger.version
            self._reasons.clear()
        reason = self._reasons.get(kind)
        if reason is None:
            reason = self._reasons[kind] = self._why(kind)
        return reason

    def _why(self, kind: WaitKind) -> int:
        quota = self._quotas.get(kind.account)
        if quota is not None and self._held.get(kind.account, 0) + kind.gpus > quota:
            return FAIR_SHARE
        if self._ledger.free_gpus < kind.gpus:
            return CAPACITY
        if self._no_place.get(kind) == self._ledger.version or not _room(self._ledger, kind):
            return FRAGMENTATION
        return PRIORITY


def _room(ledger: Ledger, kind: WaitKind) -> bool:
    if room_at_level(ledger, kind):
        return True
    return any(room_at_level(ledger, kind._replace(n=n, k=k, splits=())) for n, k in kind.splits)


def room_at_level(ledger: Ledger, kind: WaitKind) -> bool:
    """Tells whether a legal place exists, by numbers of free GPUs."""
    within = ledger.fleet.fabric.within(kind.level)
    if ledger.nodes_with_at_least(kind.k) < kind.n:
        return False
    return kind.n == 1 or within is None or int(within.sums(ledger.counts >= kind.k).max(initial=0)) >= kind.n


def totals(waits: WaitClocks, gpus_of: Mapping[str, int]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns seconds waited, and jobs that waited, by size class and reason."""
    seconds = {size: dict.fromkeys(REASONS, 0.0) for size in SIZES}
    jobs: dict[str, dict[str, float]] = {size: dict.fromkeys(REASONS, 0) for size in SIZES}
    for job, gpus in gpus_of.items():
        size = size_class(gpus)
        for reason, waited in waits.of(job).items():
            seconds[size][reason] += waited
            jobs[size][reason] += waited > 0
    return {"seconds": seconds, "jobs": jobs}
