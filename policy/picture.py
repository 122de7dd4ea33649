"""What the cluster holds now and when it comes free, kept from reading to reading: only changed nodes are redone."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from policy.book import Book, State, as_row
from policy.cluster import COLUMNS, FAR, Cluster, Fleet

if TYPE_CHECKING:
    from policy.cluster import Bools
    from policy.facts import JobFacts, NodeFacts, Reading

SOON = 5.0
"""Seconds until the GPUs of a job past its time limit are taken to come free."""

HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})


class Picture:
    """All running jobs on their nodes, and none that wait."""

    def __init__(self, fleet: Fleet) -> None:
        count = len(fleet.names)
        self.fleet = fleet
        self.at = 0.0
        self._memory_counts = True
        self._nodes: list[NodeFacts | None] = [None] * count
        self._holding: dict[int, JobFacts] = {}
        self._jobs_of: list[dict[int, JobFacts]] = [{} for _ in range(count)]
        self._up = np.zeros(count, np.bool_)
        self._quiet = np.zeros(count, np.bool_)
        self._open = np.zeros(count, np.bool_)
        self._reserved_from = np.full(count, FAR)
        self._times = np.zeros((count, COLUMNS))
        self._gpus = np.zeros((count, COLUMNS), np.int64)
        self._cpus = np.zeros((count, COLUMNS), np.int64)
        self._mem = np.zeros((count, COLUMNS), np.int64)

    def update(self, reading: "Reading") -> frozenset[int]:
        """Take a reading over; which nodes look different now."""
        self.at = reading.at
        self._memory_counts = reading.memory_counts
        changed = {place for place, node in enumerate(reading.nodes) if node is not self._nodes[place]}
        changed |= self._take_jobs(job for job in reading.jobs if job.state in HOLDING)
        for place in changed:
            node = self._nodes[place] = reading.nodes[place]
            self._up[place] = node.up
            self._quiet[place] = not node.completing
            self._write(place, node, memory_counts=reading.memory_counts)
        changed.update(self._reserve(reading))
        # A moment that has passed without the job ending is put off; the first column is always this moment.
        np.maximum(self._times, self.at + SOON, out=self._times)
        self._times[:, 0] = self.at
        return frozenset(changed)

    def end(self, job_id: int, name: str) -> bool:
        """A job ends on a node, as its Epilog says: nobody need ask Slurm for what is known already.

        False where the job is not known there; then only a reading tells.
        """
        place = self.fleet.index.get(name)
        node = None if place is None else self._nodes[place]
        if place is None or node is None or job_id not in self._jobs_of[place]:
            return False
        job = self._jobs_of[place].pop(job_id)
        mask = _held(job, name)
        if mask is None:
            return False
        share = job.cpus // max(1, len(job.nodes))
        mem = min(node.mem_used, job.mem or 0)
        # The next reading brings another record in its place.
        self._nodes[place] = node = replace(
            node,
            gpus_used=node.gpus_used & ~mask,
            seats_used=node.seats_used & ~mask,
            cpus_used=max(0, node.cpus_used - share),
            mem_used=node.mem_used - mem,
            completing=True,
        )
        self._quiet[place] = False
        self._write(place, node, memory_counts=self._memory_counts)
        return True

    def book(self) -> Book:
        """A book of its own to claim from."""
        return Book(
            Cluster(
                fleet=self.fleet,
                at=self.at,
                up=self._open,
                quiet=self._quiet,
                times=self._times,
                gpus=self._gpus,
                cpus=self._cpus,
                mem=self._mem,
                gpus_now=self._gpus[:, 0],
                cpus_now=self._cpus[:, 0],
                mem_now=self._mem[:, 0],
                hole_until=np.full(len(self.fleet.names), FAR),
                reserved_from=self._reserved_from,
            )
        )

    def put_back(self, book: Book, places: Iterable[int]) -> None:
        """Undo all claims on some nodes of a book, and bring those nodes up to date."""
        here = list(places)
        picture = book.cluster
        for theirs, ours in (
            (picture.up, self._open),
            (picture.quiet, self._quiet),
            (picture.times, self._times),
            (picture.gpus, self._gpus),
            (picture.cpus, self._cpus),
            (picture.mem, self._mem),
            (picture.gpus_now, self._gpus[:, 0]),
            (picture.cpus_now, self._cpus[:, 0]),
            (picture.mem_now, self._mem[:, 0]),
            (picture.reserved_from, self._reserved_from),
        ):
            theirs[here] = ours[here]
        picture.hole_until[here] = FAR
        book.advance(self.at)

    def is_free(self, places: Iterable[int], mask: int) -> bool:
        """Whether no running job holds any of these GPUs on any of these nodes."""
        return all(int(self._gpus[place, 0]) & mask == mask for place in places)

    def _take_jobs(self, jobs: "Iterable[JobFacts]") -> set[int]:
        holding = {job.id: job for job in jobs}
        changed: set[int] = set()
        for job_id, job in holding.items():
            if self._holding.get(job_id) is not job:
                changed |= self._forget(job_id)
                for place in self._places(job):
                    self._jobs_of[place][job_id] = job
                    changed.add(place)
        for job_id in self._holding.keys() - holding.keys():
            changed |= self._forget(job_id)
        self._holding = holding
        return changed

    def _forget(self, job_id: int) -> set[int]:
        places = set(self._places(self._holding[job_id])) if job_id in self._holding else set()
        for place in places:
            self._jobs_of[place].pop(job_id, None)
        return places

    def _places(self, job: "JobFacts") -> list[int]:
        return [self.fleet.index[name] for name in job.nodes if name in self.fleet.index]

    def _reserve(self, reading: "Reading") -> Iterable[int]:
        """Close reserved nodes; which nodes open or close by that."""
        is_open, reserved_from = self._up.copy(), np.full(len(self.fleet.names), FAR)
        for one in reading.reservations:
            places = [self.fleet.index[name] for name in one.nodes if name in self.fleet.index]
            if one.start <= reading.at < one.end:
                is_open[places] = False
            elif one.start > reading.at:
                reserved_from[places] = np.minimum(reserved_from[places], one.start)
        different: Bools = (is_open != self._open) | (reserved_from != self._reserved_from)
        self._open, self._reserved_from = is_open, reserved_from
        places_changed: list[int] = np.flatnonzero(different).tolist()
        return places_changed

    def _write(self, place: int, node: "NodeFacts", *, memory_counts: bool) -> None:
        """Write down when the jobs of a node give back what they hold."""
        full, total_cpus, total_mem = self._total(place)
        free = _free_gpus(node) & full
        cpus = max(0, node.cpus - node.cpus_used)
        mem = max(0, total_mem - (node.mem_used if memory_counts else 0))
        ends = sorted((_end(job, self.at), job.id, job) for job in self._jobs_of[place].values())
        held = {job.id: _held(job, node.name) for _, _, job in ends}
        known = 0
        for mask in held.values():
            known |= mask or 0
        # Nodes are read before jobs: a job that started in between holds GPUs that still looked free.
        free &= ~known
        # Where Slurm does not tell the GPUs of an untyped job, they come free with the last of those jobs.
        unknown = full & ~free & ~known
        last_unknown = max((number for number, (_, _, job) in enumerate(ends) if held[job.id] is None), default=-1)
        states: list[State] = [(self.at, free, cpus, mem)]
        for number, (end, _, job) in enumerate(ends):
            _, gpus, cpus, mem = states[-1]
            gpus |= full & ((held[job.id] or 0) | (unknown if number == last_unknown else 0))
            share = job.cpus / max(1, len(job.nodes))
            # Where the memory of a job is not told, its share of the CPUs stands for it.
            given = int(node.mem_used * share / max(1, node.cpus_used)) if job.mem is None else job.mem
            states.append((end, gpus, min(total_cpus, cpus + int(share)), min(total_mem, mem + given)))
        if ends:
            # With its last job a node is empty, whatever the rounding above left over.
            states[-1] = (*states[-1][:2], total_cpus, total_mem)
        self._times[place], self._gpus[place], self._cpus[place], self._mem[place] = as_row(states)

    def _total(self, place: int) -> tuple[int, int, int]:
        fleet = self.fleet
        full = (1 << int(fleet.size[place])) - 1 if fleet.ready[place] else 0
        return full, int(fleet.cpus[place]), int(fleet.mem[place])


def open_book(fleet: Fleet, reading: "Reading") -> Book:
    """The book of a single reading."""
    picture = Picture(fleet)
    picture.update(reading)
    return picture.book()


def _free_gpus(node: "NodeFacts") -> int:
    # An exclusive job takes the seats of its GPUs too, so a GPU whose seat is taken is not free for it.
    return ((1 << node.gpus) - 1) & ~node.gpus_used & ~node.seats_used


def _held(job: "JobFacts", node: str) -> int | None:
    """The GPUs of a job on one of its nodes; None where nobody can tell."""
    if job.holds:
        return job.holds[job.nodes.index(node)]
    return job.gpus if job.wants_gpus else 0


def _end(job: "JobFacts", at: float) -> float:
    return FAR if job.end is None else max(float(job.end), at + SOON)
