# SPDX-License-Identifier: Apache-2.0
"""The snapshot of a cluster: `Cluster` is its state at one moment, and its `Fleet` (fleet.py) what does not change.

Both are immutable. A snapshot holds, for each node, a short *timeline*: what is free from each moment on and stays
free, as far as time limits and planned starts tell. Free resources only grow from column to column, so the first
column that fits tells when a job fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from policy.cluster.fleet import Fleet
from policy.cluster.reserved import Room
from policy.cluster.shared.company import Company
from policy.cluster.shared.fragmentation import UsualJob
from policy.cluster.shared.sharers import Sharers
from policy.cluster.shared.shelves import Shelves
from policy.cluster.shared.tenants import Tenants
from policy.cluster.view import View
from policy.formats.arrays import FAR, Bools, Floats
from policy.formats.slurm_facts import Reservation
from policy.request.share import Mate
from topology.sets.tables import Ints

COLUMNS = 16
"""Moments kept per node; more are merged into the next one, which only makes estimates later."""

BY_NODE = (
    *("up", "quiet", "pieces", "times", "gpus", "cpus", "mem"),
    *("gpus_now", "cpus_now", "mem_now", "hole_until", "reserved_from"),
)
"""The arrays of a snapshot, with a row for each node."""


class TakenLater(NamedTuple):
    """The part of a node that a reservation takes later."""

    start: float
    mask: int
    """Its GPUs."""
    cpus: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """The state of a cluster at one moment. Rows are nodes; columns of the timelines are moments, ascending."""

    fleet: Fleet
    at: float
    up: Bools
    quiet: Bools
    times: Floats
    gpus: Ints
    cpus: Ints
    mem: Ints
    gpus_now: Ints
    """GPUs free at this moment, perhaps planned for a waiting job."""
    cpus_now: Ints
    mem_now: Ints
    hole_until: Floats
    """Time at which the first planned job starts on the node; before that a short job may run.

    What reservations take later stands in `taken_later`.
    """
    reserved_from: Floats
    pieces: Ints
    """Number of GPUs of each node that jobs on a piece of it hold."""
    lost: frozenset[int] = frozenset()
    """Nodes that are down: Slurm has ended the jobs there."""
    pieces_wait: int = 0
    """Number of GPUs for which jobs on a piece of a node wait."""
    waiting: int = 0
    """Number of waiting jobs that want GPUs."""
    crowded: bool = False
    """True if most GPUs of the cluster are taken."""
    tenants: "dict[int, Tenants]" = field(default_factory=dict)
    """The parts that packed jobs hold, for nodes with GPUs that are shared or planned to be."""
    shapes: "tuple[UsualJob, ...]" = ()
    """Requests of usual jobs, as far as seen."""
    cpus_per_gpu: float = 0.0
    """CPUs that usual jobs have for each GPU; 0 if none was seen."""
    sharers: "dict[int, Sharers]" = field(default_factory=dict)
    """Hosts and guests, for nodes that have some. All else in the snapshot is as if there were no guests."""
    tolerated: dict[int, int] = field(default_factory=dict)
    """GPUs of nodes with guests that are claimed for now by jobs which may have a guest."""
    closed: dict[int, int] = field(default_factory=dict)
    """GPUs that take no new guest, as reported by their guards."""
    spare_sms: "Mapping[Mate, int]" = field(default_factory=dict)
    """Percent of the SMs that hosts, by user and name, leave to guests under MPS, if known; 0: no guest may come."""
    shelves: Shelves = field(default_factory=Shelves)
    """A cache of data about the tenants; it finds by itself which tenants have changed."""
    reservations: "tuple[Reservation, ...]" = ()
    """Those that have not ended."""
    typed: frozenset[tuple[int, str]] = frozenset()
    """Nodes with GPUs that are reserved by type, each with the reservation's name.

    Slurm may give these GPUs to any job that names no types.
    """
    counted: "Mapping[int, float]" = field(default_factory=dict)
    """The start of the first reservation that only counts GPUs, by node: a pin to such a node passes it."""
    taken_later: "Mapping[int, tuple[TakenLater, ...]]" = field(default_factory=dict)
    """The parts of nodes that are free now, and that reservations take later, by node."""
    rooms: "tuple[Room, ...]" = ()
    """Rooms beside or in reservations, where Slurm alone gives GPUs."""
    neighbours: "Company | None" = None
    """Predictions for packed jobs that share a GPU; None if the site keeps no profiles."""

    def now(self, limit: float) -> View:
        """Returns the view of what a job of this time limit can start on at once."""
        closes = self.at + limit
        fits_hole = self.hole_until >= closes
        free, cpus, mem = self.gpus_now, self.cpus_now, self.mem_now
        if not fits_hole.all():
            free = np.where(fits_hole, free, self.gpus[:, 0])
            cpus = np.where(fits_hole, cpus, self.cpus[:, 0])
            mem = np.where(fits_hole, mem, self.mem[:, 0])
        if self.taken_later:
            free, cpus = free.copy(), cpus.copy()
            for node in self.taken_later:
                if fits_hole[node]:
                    free[node], cpus[node] = self.stays_free(node, closes)
        return self._view(free, cpus, mem, self.up & (self.reserved_from >= closes), self.quiet, self.at)

    def stays_free(self, node: int, closes: float) -> tuple[int, int]:
        """Returns the GPUs and CPUs of a node that are free now, without what reservations take until then."""
        gpus, cpus = int(self.gpus_now[node]), int(self.cpus_now[node])
        for start, mask, count in self.taken_later.get(node, ()):
            if start < closes:
                gpus, cpus = gpus & ~mask, cpus - count
        return gpus, max(0, cpus)

    def free_until(self, node: int, mask: int) -> float:
        """Returns the time from which on GPUs that are free now are planned for a job, or reserved."""
        starts = [one.start for one in self.taken_later.get(node, ()) if one.mask & mask]
        return min([float(self.hole_until[node]), *starts])

    def _view(self, free: Ints, cpus: Ints, mem: Ints, is_open: Bools, quiet: Bools, at: float) -> View:
        return View(
            self.fleet, free, cpus, mem, is_open, quiet, crowded=self.crowded, cpus_per_gpu=self.cpus_per_gpu,
            shared_left=partial(self._shared_left, at) if self.tenants else None,
        )  # fmt: skip

    def _shared_left(self, at: float, nodes: Ints) -> Ints:
        self.shelves.bring(self.tenants)
        return np.asarray(self.shelves.left(nodes, at).sum(axis=1))

    def memory_like(self, mem: int) -> tuple[int, int]:
        """Returns bounds (lower excluded, upper included): jobs of these needs find memory on the same nodes now."""
        free = np.concatenate([self.mem_now, self.mem[:, 0]])
        enough = free >= mem
        return int(free[~enough].max(initial=-1)), int(free[enough].min(initial=np.iinfo(np.int64).max))

    def limits_like(self, limit: float) -> tuple[float, float]:
        """Returns bounds (lower excluded, upper included): jobs of these time limits see the same free resources."""
        taken = [one.start for those in self.taken_later.values() for one in those]
        closing = np.concatenate([self.hole_until, self.reserved_from, taken]) - self.at
        later = closing >= limit
        return float(closing[~later].max(initial=0.0)), float(closing[later].min(initial=FAR))

    def digest(self) -> bytes:
        """Returns a digest of the nodes' timelines; while it stays the same, only the time has gone on."""
        found = blake2b(np.where(self.times > self.at, self.times, 0.0).data, digest_size=16)
        for name in BY_NODE:
            if name != "times":
                found.update(np.ascontiguousarray(getattr(self, name)).data)
        return found.digest()

    def then(self, moment: float, limit: float) -> View:
        """Returns the view of what is expected to be free at a later moment."""
        column = np.maximum((self.times <= moment).sum(axis=1) - 1, 0)
        place = np.arange(column.size), column
        return self._view(
            self.gpus[place],
            self.cpus[place],
            self.mem[place],
            self.up & (self.reserved_from >= moment + limit),
            np.ones_like(self.quiet),
            moment,
        )

    @property
    def free_gpus(self) -> int:
        """Returns the number of GPUs that no job holds."""
        return int(np.bitwise_count(self.gpus_now).sum())

    @property
    def empty_nodes(self) -> int:
        """Returns the number of open nodes on which no GPU is held: room for jobs on several nodes."""
        return int((self.up & (self.gpus_now == self.fleet.full) & (self.fleet.size > 0)).sum())
