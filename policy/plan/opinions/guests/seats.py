# SPDX-License-Identifier: Apache-2.0
"""Seats: finds seats for guests, and the guests that have to leave. Pure functions, as in the rest of the plan.

Guests never delay an owner. The owners are planned as if there were no guests, and what they claim for now is taken
from the guests. So an owner starts as early as without guests, and guests get what is left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from policy.cluster.shared.sharers import Host, JobIdentity, Sharers
from policy.formats.arrays import CUT, FAR
from policy.formats.errors import NotNow
from policy.placement.base import Berth, Policy
from policy.request.settings import Sharing

if TYPE_CHECKING:
    from policy.cluster.snapshot import Cluster
    from policy.formats.arrays import Bools
    from policy.plan.ledger.book import Book
    from policy.plan.opinions.guests.judge import HostJudge
    from policy.request.demand import Demand
    from topology.sets.tables import Ints

Keys = NDArray[Any]
"""Sort keys of rows: integers, floats or booleans."""

LEAST = 120.0
"""Seconds for which no job may be planned on an idle GPU, so that a guest begins on it."""

MARGIN = 0.05
"""The part of a GPU's memory that a guest leaves free beside what its host needs, as nodes have it."""

LEAST_MIB = 1_024
"""The least memory that a seat gives to a guest which does not say what it needs."""

FAR_MIB = 1 << 40

NOTHING = Sharers()


def _said(host: Host) -> int | None:
    return host.gpu_mem


@dataclass(frozen=True, slots=True)
class Seat:
    """A seat for a guest, and the way in which it shares the GPU with its host."""

    berth: Berth
    way: str
    slope: float | None = None
    """The most speed that the host is predicted to lose; None without a prediction."""
    sms: int | None = None
    """Percent of the SMs that it is limited to; None: as many as its guard allows."""
    need: str | None = None
    """The job number of a host that does not say its need, and the MiB that such jobs were measured to need."""
    beside: JobIdentity | None = None
    """The owner; None on a GPU that no job uses, and where no judge was asked."""


class Unfit(NotNow):
    """Seats are free, but none of them fits this guest."""


def way_of(demand: "Demand", host: Host, sharing: Sharing) -> str:
    """Returns how a guest and its host share a GPU: `time` (in turn), `mps`, or empty if they cannot.

    With `mps` both are in one fault domain: both must allow it, and neither user may be kept apart. A host under MPS
    has one daemon for all its GPUs of a node. A guest that joins must have the same GPUs, so only a host with one GPU
    there can have a guest.
    """
    if not host.mps:
        return "time"
    users = {host.user, demand.user}
    together = demand.tier.mps and (sharing.multi_user or len(users) == 1) and users.isdisjoint(sharing.apart)
    return "mps" if together and host.mask.bit_count() == 1 else ""


def to_evict(book: "Book", places: Iterable[int] | None = None) -> dict[int, str]:
    """Returns the guests that must leave the nodes `places` (None: all nodes) because of claims that start now."""
    cluster, found = book.cluster, dict[int, str]()
    for place in list(cluster.sharers) if places is None else places:
        sharers = cluster.sharers.get(place, NOTHING)
        if not sharers.guests:
            continue
        free = int(cluster.gpus_now[place]) | sharers.host_mask | cluster.tolerated.get(place, 0)
        stay = []
        for guest in sharers.guests:
            if guest.mask & ~free:
                found[guest.job] = "its GPU is needed by a job that has it alone"
            else:
                stay.append(guest)
        # Guests of the lowest priority leave first; of equal ones, the newest job.
        stay.sort(key=lambda guest: (-guest.priority, guest.job))
        cpus, mem = int(cluster.cpus_now[place]), int(cluster.mem_now[place])
        while stay and (sum(one.cpus for one in stay) > cpus or sum(one.mem for one in stay) > mem):
            found[stay.pop().job] = "its CPUs and memory are needed by a job with GPUs of its own"
    return found


class Left:
    """The seats and resources that owners and present guests leave, given out to one guest after the other.

    Built once for all guests of a pass, since a cluster has thousands of seats. A seat that is given is no longer free.
    """

    def __init__(
        self, cluster: "Cluster", places: Iterable[int] | None = None, need_of: Callable[[Host], int | None] = _said
    ) -> None:
        """Covers the nodes `places`, or all nodes; `need_of` tells the MiB that a host needs, None if not known.

        Without its need known, a host has no seat: a guest could take the memory that it needs.
        """
        self.cluster = cluster
        self._silent = 0
        """Hosts with a free seat whose need is not known."""
        here = cluster.sharers.keys() if places is None else places
        self._here: Bools = np.full(len(cluster.fleet.names), places is None)
        if places is not None:
            self._here[list(places)] = True
        soon = cluster.hole_until < cluster.at + LEAST
        # The first column of a timeline holds what is free now and stays free.
        self.idle: Ints = np.where(soon, cluster.gpus[:, 0], cluster.gpus_now)
        """Masks of GPUs without owner or guest, by node."""
        self._cpus: Ints = np.where(soon, cluster.cpus[:, 0], cluster.cpus_now)
        self._mem: Ints = np.where(soon, cluster.mem[:, 0], cluster.mem_now)
        for node in cluster.taken_later:
            if not soon[node]:
                self.idle[node], self._cpus[node] = cluster.stays_free(node, cluster.at + LEAST)
        self._guests = np.zeros(len(cluster.fleet.names), np.int64)
        self.hosts: list[Host] = []
        """Hosts that had free seats when this was built, one per row."""
        rows, whos = [], dict[JobIdentity, int]()
        for place in here:
            sharers = cluster.sharers.get(place, NOTHING)
            taken = sharers.guest_mask
            self.idle[place] &= ~taken
            self._guests[place] = len(sharers.guests)
            self._cpus[place] -= sum(guest.cpus for guest in sharers.guests)
            self._mem[place] -= sum(guest.mem for guest in sharers.guests)
            free = ~taken & ~cluster.closed.get(place, 0)
            for host in sharers.hosts:
                need = need_of(host) if host.mask & free else None
                if need is not None:
                    kind = whos.setdefault(host.who, len(whos))
                    rows.append((place, host.mask & free, host.gpus, need, kind))
                    self.hosts.append(host)
                self._silent += bool(host.mask & free) and need is None
        for place, closed in cluster.closed.items():
            self.idle[place] &= ~closed
        self.place, self.free, self._gpus, self._needs, self._kind = np.array(rows, np.int64).reshape(-1, 5).T
        self.whos = list(whos)
        """The jobs of the hosts, each once."""
        fleet = cluster.fleet
        self._capacity: Ints = np.maximum(0, fleet.gpu_mem - fleet.sharing.gpu_mem_reserve)
        """MiB of each GPU, by node; 0 if not known."""
        memory = fleet.gpu_mem[self.place]
        self.room: Ints = np.where(memory > 0, (memory * (1.0 - MARGIN)).astype(np.int64) - self._needs, FAR_MIB)
        """MiB that a guest may hold beside each host; `FAR_MIB` if the memory of its GPUs is not known."""

    def take(self, place: int, mask: int, cpus: int, mem: int) -> None:
        """Takes a seat and a guest's CPUs and memory away."""
        self.idle[place] &= ~mask
        self.free[self.place == place] &= ~mask
        self._guests[place] += 1
        self._cpus[place] -= cpus
        self._mem[place] -= mem

    @property
    def full(self) -> bool:
        """Tells whether no host has a seat left."""
        return not self.free.any()

    def enough(self, demand: "Demand") -> "Bools":
        """Returns the nodes where a guest may go, with enough CPUs and memory left."""
        fleet = self.cluster.fleet
        able = self._here & demand.candidates & self.cluster.up & fleet.seats & (fleet.gpu_mem != CUT)
        able &= self.cluster.reserved_from >= self.cluster.at + demand.limit
        mem = fleet.mem if demand.mem is None else demand.mem
        return able & (self._cpus >= (demand.cpus or 0)) & (self._mem >= mem)  # type: ignore[no-any-return]

    def takes(self, demand: "Demand", place: int, mask: int) -> bool:
        """Tells whether a given seat is free."""
        if not self.enough(demand)[place]:
            return False
        seats = self.free[(self.place == place) & self._fits(demand.gpu_mem)]
        return bool(int(self.idle[place]) & mask) or bool((seats & mask).any())

    def find(self, demand: "Demand", judge: "HostJudge | None" = None) -> Seat:
        """Returns the best seat: on an idle GPU, where it slows no job, else beside a host; or raises `NotNow`."""
        enough = self.enough(demand)
        rows = enough[self.place] & (self.free != 0)
        seat = self._idle(demand, enough & (self.idle != 0)) or self._beside(demand, rows, judge)
        return seat or self._none(demand)

    def find_idle(self, demand: "Demand") -> Seat:
        """Returns a seat on an idle GPU, or raises `NotNow`."""
        seat = self._idle(demand, self.enough(demand) & (self.idle != 0))
        if seat is None:
            raise NotNow("its seat is chosen by what is known of it and of the hosts, if one is free", 310)
        return seat

    def at(self, demand: "Demand", place: int, mask: int, judge: "HostJudge") -> Seat | None:
        """Returns a given seat, if it is still free."""
        if not self.enough(demand)[place]:
            return None
        if int(self.idle[place]) & mask:
            return self._on_idle(demand, place, mask)
        return self._beside(demand, (self.place == place) & (self.free & mask != 0), judge, mask)

    def _fits(self, needs: float | None) -> "Bools":
        """Tells for each host if it leaves a guest the memory that the guest needs."""
        fits: Bools = self.room >= (needs or LEAST_MIB)
        return fits

    def _idle(self, demand: "Demand", nodes: "Bools") -> Seat | None:
        if demand.gpu_mem is not None:
            nodes = nodes & ((self._capacity == 0) | (demand.gpu_mem <= self._capacity))
        here = np.flatnonzero(nodes)
        if not here.size:
            return None
        # Nodes with few idle GPUs come first, as no big job is likely to start there: whole nodes stay without guests.
        idle = np.bitwise_count(self.idle[here])
        node = int(here[np.lexsort((here, idle, ~self.cluster.quiet[here]))[0]])
        fleet = self.cluster.fleet
        entry = fleet.offset[node : node + 1] + self.idle[node]
        fleet.tables.look_up(1, "node", entry)
        return self._on_idle(demand, node, int(fleet.tables.row(1, "node").picks[entry][0]))

    def _on_idle(self, demand: "Demand", node: int, mask: int) -> Seat:
        cluster = self.cluster
        planned = cluster.hole_until[node] < FAR and not int(cluster.gpus[node, 0]) & mask
        why = "on a GPU that waits for others of its job to come free" if planned else "on a GPU that no job uses"
        return Seat(self._berth(demand, node, mask, f"{why}; a guest leaves when its owner comes"), "time")

    def _beside(self, demand: "Demand", rows: "Bools", judge: "HostJudge | None", only: int = -1) -> Seat | None:
        """Returns the best seat beside the hosts in `rows`; `only` is the mask of GPUs that may be used."""
        rows = rows & self._fits(demand.gpu_mem)
        here = np.flatnonzero(rows)
        if not here.size:
            return None
        if any(self.hosts[row].mps for row in here.tolist()):
            here = self._that_take(demand, here)
        if self.cluster.spare_sms:
            here = np.array([row for row in here.tolist() if self._spare(demand, self.hosts[row]) != 0], np.int64)
            if not here.size:
                raise Unfit(
                    "the hosts with a free seat keep nearly all multiprocessors busy, and would share them by MPS"
                )
        # A guest on one of a host's n GPUs slows down the work on all n.
        place, gpus = self.place[here], self._gpus[here]
        keys: tuple[Keys, ...] = (place, ~self.cluster.quiet[place], self._guests[place], gpus)
        if judge is not None:
            here, keys = self._judged(judge, here)
        row = int(here[np.lexsort(keys)[0]])
        host, mask = self.hosts[row], int(self.free[row]) & only
        mask &= -mask
        way = way_of(demand, host, self.cluster.fleet.sharing)
        of = "on one GPU" if host.gpus == 1 else f"on {host.gpus} GPUs"
        fate = "at the same time, in one fault domain: a fatal error of one ends both" if way == "mps" else "in turn"
        why, slope = f"beside a guaranteed job {of}, {fate}", None
        if (sms := self._spare(demand, host)) is not None:
            why = f"{why}; held to {sms} % of the multiprocessors, which its host leaves"
        if judge is not None:
            why, slope = f"{why}; {judge.why(host.who)}", judge.slope(host.who)
        beside = host.who if judge is not None else None
        need = None if host.gpu_mem is not None else f"{host.job}:{self._needs[row]}"
        return Seat(self._berth(demand, int(self.place[row]), mask, why), way, slope, sms, need, beside)

    def _that_take(self, demand: "Demand", here: "Ints") -> "Ints":
        """Returns the rows without the hosts under MPS that this guest cannot join; raises `Unfit` if none is left."""
        ways = [way_of(demand, self.hosts[row], self.cluster.fleet.sharing) for row in here.tolist()]
        found: Ints = here[np.array([bool(way) for way in ways])]
        if not found.size:
            raise Unfit(
                "the hosts with a free seat run under MPS, which only jobs of their users that say so too can join"
            )
        return found

    def _spare(self, demand: "Demand", host: Host) -> int | None:
        """Returns the percent of the SMs that a host leaves to this guest; None if unknown, or if they take turns."""
        if way_of(demand, host, self.cluster.fleet.sharing) != "mps":
            return None
        return self.cluster.spare_sms.get((host.who.user, host.who.name))

    def _judged(self, judge: "HostJudge", here: "Ints") -> "tuple[Ints, tuple[Keys, ...]]":
        """Returns the rows that fit a guest, and the keys to sort them by; raises `Unfit` if none fits."""
        kinds = self._kind[here]
        one = kinds.size == 1
        table = judge.table([self.whos[int(kinds[0])]]) if one else judge.of_all(self.whos)[kinds]
        place = self.place[here]
        fits = (table[:, 0] > 0) & self._fits(judge.needs)[here]
        if not fits.any():
            seats = int(np.bitwise_count(self.free[here]).sum())
            raise Unfit(f"{seats} seats are free, and no host there is known to bear this guest or free for a trial")
        here, table, place = here[fits], table[fits], place[fits]
        safe, value, gpus = table[:, 1] > 0, table[:, 2].round(2), self._gpus[here]
        # If no speed can be promised, the rule without profiles holds: hosts with the fewest GPUs first.
        first, second = np.where(safe, -value, gpus), np.where(safe, gpus, -value)
        return here, (place, ~self.cluster.quiet[place], self._guests[place], second, first, ~safe)

    def _berth(self, demand: "Demand", node: int, mask: int, why: str) -> Berth:
        return Policy.spread(demand, self.cluster.now(demand.limit), [node], [mask], why)

    def _none(self, demand: "Demand") -> Seat:
        taken = int(self._guests.sum())
        hosts = int(np.bitwise_count(self.free[self._fits(demand.gpu_mem)]).sum())
        idle = int(np.bitwise_count(np.where(demand.candidates, self.idle, 0)).sum())
        if idle + hosts:
            raise NotNow(
                f"no node with a free seat has the cores and memory for one more guest ({idle + hosts} seats)", 311
            )
        silent = f"; {self._silent} hosts do not say how much GPU memory they need (--gpu-mem)" if self._silent else ""
        raise NotNow(
            f"no seat is free: {taken} have guests, and no other GPU where it could run is idle or may have "
            f"one{silent}",
            311,
        )
