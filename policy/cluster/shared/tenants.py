# SPDX-License-Identifier: Apache-2.0
"""Tenants: the jobs that share the GPUs of a node, with their times. Jobs on whole GPUs do not need this.

A shared GPU is never free for a whole-GPU job, so its bit is cleared in the node's timeline until its last packed job
ends. The part of it that is left is kept here. All packed jobs of a GPU hold the same set of GPUs: a client of MPS
uses one daemon, which serves exactly its GPUs, and a GPU has one daemon.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from policy.request.share import ALONE, NOBODY, UNNAMED, Mate, Share
from topology.sets.wiring import positions

MOST_TENANTS = 48
"""Most packed jobs on one GPU: MPS serves this many clients, and each job is at least one."""


@dataclass(frozen=True, slots=True)
class PlannedTenant:
    """A part of some GPUs of one node, held for a time. A whole-GPU job that is planned there holds all of them."""

    mask: int
    percent: int
    gpu_mem: int
    party: int
    start: float
    end: float
    mate: Mate = UNNAMED

    def there(self, moment: float) -> bool:
        """Tells whether it holds its part at a moment."""
        return self.start <= moment < self.end


@dataclass(frozen=True)
class Tenants:
    """All tenants of a node; data that is used often is cached."""

    everybody: tuple[PlannedTenant, ...] = ()

    def __iter__(self) -> Iterator[PlannedTenant]:
        """Iterates over all tenants."""
        return iter(self.everybody)

    @cached_property
    def sets(self) -> dict[int, frozenset[int]]:
        """Returns the sets of GPUs that each party shares, now or later."""
        parties = {tenant.party for tenant in self} - {NOBODY, ALONE}
        return {one: frozenset(tenant.mask for tenant in self if tenant.party == one) for one in parties}

    @cached_property
    def _left(self) -> dict[int, dict[int, int]]:
        return {}

    @cached_property
    def _moments(self) -> list[float]:
        return sorted({moment for tenant in self for moment in (tenant.start, tenant.end)})

    def left(self, moment: float) -> dict[int, int]:
        """Returns the percent left of each shared GPU at a moment, by its position."""
        since = bisect_right(self._moments, moment)
        if since not in self._left:
            self._left[since] = _left_at(self, moment)
        return self._left[since]

    def open_to(self, share: Share, k: int, capacity: int, start: float, end: float) -> list[int]:
        """Returns the sets of k GPUs that are shared at `start` and have room for a share until `end`."""
        return [
            mask
            for mask in sorted(self.sets.get(share.party, ()))
            if mask.bit_count() == k
            and any(tenant.mask == mask and tenant.there(start) for tenant in self)
            and admits(self, mask, share, capacity, start, end)
        ]


def _left_at(tenants: Iterable[PlannedTenant], moment: float) -> dict[int, int]:
    left: dict[int, int] = {}
    for tenant in tenants:
        if tenant.party not in {NOBODY, ALONE} and tenant.there(moment):
            for gpu in positions(tenant.mask):
                left[gpu] = left.get(gpu, 100) - tenant.percent
    return left


def barred(mask: int, start: float, end: float) -> PlannedTenant:
    """Returns a tenant that keeps shares off some GPUs for a time."""
    return PlannedTenant(mask, 100, 0, NOBODY, start, end)


def admits(tenants: Iterable[PlannedTenant], mask: int, share: Share, capacity: int, start: float, end: float) -> bool:
    """Tells whether a share fits on GPUs from `start` to `end` beside their tenants; `capacity`: MiB, 0 if unknown."""
    met = [tenant for tenant in tenants if tenant.mask & mask and tenant.start < end and tenant.end > start]
    if met and share.party == ALONE:
        return False
    if any(tenant.party != share.party or tenant.mask != mask or tenant.mate in share.foes for tenant in met):
        return False
    granted, percent = share.granted(capacity), share.counted(capacity)
    # A GPU is fullest just after a tenant has come, so only these moments are checked.
    for moment in (start, *[tenant.start for tenant in met if tenant.start > start]):
        here = [tenant for tenant in met if tenant.there(moment)]
        if sum(tenant.percent for tenant in here) + percent > 100 or len(here) >= MOST_TENANTS:
            return False
        if capacity and sum(tenant.gpu_mem for tenant in here) + granted > capacity:
            return False
    return True
