"""From one reading of Slurm to a `Book` of what is free, now and later."""

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from policy.book import Book
from policy.cluster import COLUMNS, FAR, Cluster, Fleet

if TYPE_CHECKING:
    from policy.facts import JobFacts, NodeFacts, Reading

SOON = 5.0
"""Seconds until the GPUs of a job past its time limit are taken to come free."""

HOLDING = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"})


def open_book(fleet: Fleet, reading: "Reading") -> Book:
    """A book with all running jobs in it, and none that wait."""
    count = len(fleet.names)
    at = reading.at
    free = np.array([_free_gpus(node, fleet, place) for place, node in enumerate(reading.nodes)], np.int64)
    cpus = np.array([max(0, node.cpus - node.cpus_used) for node in reading.nodes], np.int64)
    used_mem = [node.mem_used if reading.memory_counts else 0 for node in reading.nodes]
    mem = np.maximum(0, fleet.mem - np.array(used_mem, np.int64))
    book = Book(
        Cluster(
            fleet=fleet,
            at=at,
            up=np.array([node.up for node in reading.nodes], np.bool_) & _outside_reservations(fleet, reading),
            quiet=np.array([not node.completing for node in reading.nodes], np.bool_),
            times=np.full((count, COLUMNS), at),
            gpus=np.repeat(free[:, None], COLUMNS, axis=1),
            cpus=np.repeat(cpus[:, None], COLUMNS, axis=1),
            mem=np.repeat(mem[:, None], COLUMNS, axis=1),
            gpus_now=free,
            cpus_now=cpus,
            mem_now=mem,
            hole_until=np.full(count, FAR),
            reserved_from=_reserved_from(fleet, reading),
        )
    )
    for node, jobs in _jobs_by_node(fleet, reading).items():
        _release(book, node, jobs, reading)
    return book


def _free_gpus(node: "NodeFacts", fleet: Fleet, place: int) -> int:
    # An exclusive job takes the seats of its GPUs too, so a GPU whose seat is taken is not free for it.
    if not fleet.ready[place]:
        return 0
    return ((1 << node.gpus) - 1) & ~node.gpus_used & ~node.seats_used


def _outside_reservations(fleet: Fleet, reading: "Reading") -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    outside = np.ones(len(fleet.names), np.bool_)
    for one in reading.reservations:
        if one.start <= reading.at < one.end:
            outside[[fleet.index[name] for name in one.nodes if name in fleet.index]] = False
    return outside


def _reserved_from(fleet: Fleet, reading: "Reading") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    reserved = np.full(len(fleet.names), FAR)
    for one in reading.reservations:
        if one.start > reading.at:
            places = [fleet.index[name] for name in one.nodes if name in fleet.index]
            reserved[places] = np.minimum(reserved[places], one.start)
    return reserved


def _jobs_by_node(fleet: Fleet, reading: "Reading") -> dict[int, list["JobFacts"]]:
    jobs: dict[int, list[JobFacts]] = defaultdict(list)
    for job in reading.jobs:
        if job.state in HOLDING:
            for name in job.nodes:
                if name in fleet.index:
                    jobs[fleet.index[name]].append(job)
    return jobs


def _release(book: Book, place: int, jobs: list["JobFacts"], reading: "Reading") -> None:
    """Write down when the jobs of a node give back what they hold."""
    fleet, picture, node = book.fleet, book.cluster, reading.nodes[place]
    full, total_cpus, total_mem = int(fleet.full[place]), int(fleet.cpus[place]), int(fleet.mem[place])
    known = 0
    for job in jobs:
        known |= job.gpus or 0
    # Nodes are read before jobs: a job that started in between holds GPUs that still looked free.
    free = int(picture.gpus_now[place]) & ~known
    picture.gpus_now[place] = free
    # Slurm does not tell the GPUs of an untyped job; they come free with the last of those jobs.
    unknown = full & ~free & ~known
    jobs = sorted(jobs, key=lambda job: (_end(job, reading.at), job.id))
    last_untyped = max((place for place, job in enumerate(jobs) if job.gpus is None), default=-1)
    states = [(picture.at, free, int(picture.cpus_now[place]), int(picture.mem_now[place]))]
    for number, job in enumerate(jobs):
        _, gpus, cpus, mem = states[-1]
        gpus |= full & ((job.gpus or 0) | (unknown if number == last_untyped else 0))
        share = job.cpus / max(1, len(job.nodes))
        # The queue does not say what memory a job holds on a node; its share of the CPUs is taken for it.
        mem = min(total_mem, mem + int(node.mem_used * share / max(1, node.cpus_used)))
        states.append((_end(job, reading.at), gpus, min(total_cpus, cpus + int(share)), mem))
    # With its last job a node is empty, whatever the rounding above left over.
    states[-1] = (*states[-1][:2], total_cpus, total_mem)
    book.set_row(place, states)


def _end(job: "JobFacts", at: float) -> float:
    if job.end is None:
        return FAR
    return max(float(job.end), at + SOON)
