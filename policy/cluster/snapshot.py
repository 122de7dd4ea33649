"""The cluster as the core sees it: a `Fleet` of what does not change, and a `Cluster`, the picture of one moment.

Both are immutable. A picture holds, for each node, a short *timeline*: what is free from each moment on and stays
free, as far as time limits and planned starts tell. Its columns only ever gain, so "when does this fit" is the
first column that fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.shared.shelves import Shelves
from policy.cluster.view import View
from policy.formats.arrays import FAR, Bools, Floats
from topology.tables import Ints

if TYPE_CHECKING:
    from policy.cluster.shared.company import Company
    from policy.cluster.shared.fragmentation import Shape
    from policy.cluster.shared.sharers import Sharers
    from policy.cluster.shared.tenants import Tenants
    from policy.request.share import Mate


COLUMNS = 16
"""Moments kept for each node; further ones are merged into the next, which only makes estimates later."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The picture of one moment. Rows are nodes; columns of the timelines are moments, ascending."""

    fleet: Fleet
    at: float
    up: Bools
    quiet: Bools
    times: Floats
    gpus: Ints
    cpus: Ints
    mem: Ints
    gpus_now: Ints
    """Free at this moment, though perhaps planned for a job that waits."""
    cpus_now: Ints
    mem_now: Ints
    hole_until: Floats
    """When the first planned job starts on the node; before that a short job fits in."""
    reserved_from: Floats
    pieces: Ints
    """GPUs of each node that are held by jobs on a piece of it."""
    pieces_wait: int = 0
    """GPUs that jobs on a piece of a node wait for."""
    waiting: int = 0
    """Pinned jobs that wait."""
    crowded: bool = False
    """Whether most GPUs of the cluster are taken."""
    tenants: "dict[int, Tenants]" = field(default_factory=dict)
    """For nodes with shared GPUs, or some that are planned to be: who holds what part of them."""
    shapes: "tuple[Shape, ...]" = ()
    """What the usual jobs ask for, as far as seen."""
    sharers: "dict[int, Sharers]" = field(default_factory=dict)
    """For nodes with hosts or guests: who. All else in the picture is as if there were no guests."""
    tolerated: dict[int, int] = field(default_factory=dict)
    """For nodes with guests: GPUs that are claimed for now by jobs which may have one."""
    closed: dict[int, int] = field(default_factory=dict)
    """GPUs that take no new guest, as their guards say."""
    spare_sms: "Mapping[Mate, int]" = field(default_factory=dict)
    """Percent of the SMs that hosts, by user and name, leave to guests under MPS, as far as known; 0: none may come."""
    shelves: Shelves = field(default_factory=Shelves)
    """Of the tenants what is asked again and again; it looks by itself whether they have changed."""
    neighbours: "Company | None" = None
    """What is known of packed jobs beside each other; None where the site keeps no profiles."""

    def now(self, limit: float) -> View:
        """What a job of this time limit can start on at once."""
        closes = self.at + limit
        fits_hole = self.hole_until >= closes
        if fits_hole.all():
            is_open = self.up & (self.reserved_from >= closes)
            return View(
                self.fleet, self.gpus_now, self.cpus_now, self.mem_now, is_open, self.quiet, crowded=self.crowded
            )
        return View(
            self.fleet,
            np.where(fits_hole, self.gpus_now, self.gpus[:, 0]),
            np.where(fits_hole, self.cpus_now, self.cpus[:, 0]),
            np.where(fits_hole, self.mem_now, self.mem[:, 0]),
            self.up & (self.reserved_from >= closes),
            self.quiet,
            crowded=self.crowded,
        )

    def limits_like(self, limit: float) -> tuple[float, float]:
        """Jobs of all time limits above the first of these and up to the second see what one of this limit sees now."""
        closing = np.concatenate([self.hole_until, self.reserved_from]) - self.at
        later = closing >= limit
        return float(closing[~later].max(initial=0.0)), float(closing[later].min(initial=FAR))

    def then(self, moment: float, limit: float) -> View:
        """What is expected to be free at a later moment."""
        column = np.maximum((self.times <= moment).sum(axis=1) - 1, 0)[:, None]
        return View(
            self.fleet,
            np.take_along_axis(self.gpus, column, 1)[:, 0],
            np.take_along_axis(self.cpus, column, 1)[:, 0],
            np.take_along_axis(self.mem, column, 1)[:, 0],
            self.up & (self.reserved_from >= moment + limit),
            np.ones_like(self.quiet),
            crowded=self.crowded,
        )

    @property
    def free_gpus(self) -> int:
        """GPUs that no job holds."""
        return int(np.bitwise_count(self.gpus_now).sum())

    @property
    def empty_nodes(self) -> int:
        """Nodes with GPUs that take jobs, and of whose GPUs none is held: room for gangs."""
        return int((self.up & (self.gpus_now == self.fleet.full) & (self.fleet.size > 0)).sum())
