# SPDX-License-Identifier: Apache-2.0
"""Makes the cluster's part of the state file, from which metrics are served.

A cluster of 100,000 GPUs costs the planner some milliseconds each time.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from policy.cluster.shared.fragmentation import stranded
from policy.cluster.snapshot import Cluster
from policy.daemon.hear.gpu_use import Idle
from policy.daemon.write.evictions import Evictions
from policy.daemon.write.pins import Pins
from policy.formats.plan_fields import BECAUSE
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading
from policy.plan.jobs.waiting import Waiting
from policy.plan.queue.wait_reasons import KINDS
from policy.site.metrics_state import BOUNDS, ClusterState, Durations, Histogram
from topology.model import Machine, MachineShape
from topology.network.fabric import NOBODY
from topology.sets.tables import MOST_GPUS, Ints
from topology.sets.wiring import positions

MAKE_EVERY = 5.0
"""Seconds between two states; Prometheus asks less often."""

SLOW_FROM = 1.05
"""Score from which on a GPU is slow: an application class takes 5 % longer on it than on its median peer."""

MOST_SLOW = 1_000
"""Slow GPUs that are named, the slowest first; all of them are counted."""

STARTING, NEW = "starting", "new"
"""Two more reasons beside those of `wait_reasons`: the job's place is free, and no reason was written yet."""

_HOLDS = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED"})
_FAILED_OF = "failed."


class StateMaker:
    """Collects durations, and makes the state."""

    def __init__(self, *, job_info: bool) -> None:
        self._job_info = job_info
        self.due = 0.0
        self.latest: ClusterState | None = None
        self.passes, self.looks = Histogram(BOUNDS), Histogram(BOUNDS)

    def make(
        self,
        reading: Reading,
        cluster: Cluster,
        queue: Iterable[Waiting],
        counts: Mapping[str, float],
        told: Mapping[str, str],
        idle: Idle,
    ) -> None:
        """Makes the state for the next few seconds; `told` are the counters as `berth status` shows them."""
        self.due = time.monotonic() + MAKE_EVERY
        numbers = {name: int(text) for name, text in told.items() if text.isdigit()}
        held: dict[tuple[str, str], float] = {}
        for (node, gpu, _), one in idle.items():
            held[node, gpu] = max(held.get((node, gpu), 0.0), reading.at - one.no_kernel)
        self.latest = msgspec.structs.replace(
            state_of(reading, cluster, job_info=self._job_info),
            waiting=waiting_by_reason(queue),
            idle=[(*place, seconds) for place, seconds in held.items()],
            counts={**counts, **{name: count for name, count in numbers.items() if not name.startswith(_FAILED_OF)}},
            failed={name[len(_FAILED_OF) :]: count for name, count in numbers.items() if name.startswith(_FAILED_OF)},
            passes=Durations(self.passes.bounds, tuple(self.passes.cumulative), self.passes.sum),
            looks=Durations(self.looks.bounds, tuple(self.looks.cumulative), self.looks.sum),
        )


def planner_counts(pins: Pins, evictions: Evictions, taken: int, late: int) -> dict[str, float]:
    """Returns the counters of updates in Slurm, and of Epilogs' notices."""
    return {
        "updates": pins.written,
        "pins_first": pins.first,
        "pins_again": pins.again,
        "evictions": evictions.count,
        "notices": taken,
        "notices_late": late,
    }


def free_islands(free: Ints, cluster: Cluster) -> list[tuple[str, int, int]]:
    """Counts the sets of free GPUs that NVLink joins, by model and size; an NVLink domain may span nodes."""
    fleet = cluster.fleet
    alike: Counter[tuple[str, int, int]] = Counter()
    domains: Counter[tuple[str, int]] = Counter()
    shapes: dict[int, MachineShape] = {}
    for place in np.flatnonzero(free).tolist():
        machine, mask, domain = fleet.machines[place], int(free[place]), int(fleet.fabric.domain[place])
        if machine is None:
            continue
        if domain == NOBODY:
            shapes[id(machine.shape)] = machine.shape
            alike[machine.model, id(machine.shape), mask] += 1
        else:
            domains[machine.model, domain] += mask.bit_count()
    found = Counter((model, size) for (model, _), size in domains.items())
    for (model, shape, mask), count in alike.items():
        for size in joined(shapes[shape], mask):
            found[model, size] += count
    return [(model, size, count) for (model, size), count in sorted(found.items())]


def state_of(reading: Reading, cluster: Cluster, *, job_info: bool = False) -> ClusterState:
    """Returns the state of nodes, GPUs and running jobs at a reading."""
    fleet, nodes = cluster.fleet, reading.nodes
    used, shared = _used(nodes), _shared(nodes, cluster)
    free = free_masks(nodes, cluster)
    whole = np.bitwise_count(used & ~shared & fleet.full).astype(np.int64)
    by_state = {
        "free": np.bitwise_count(free).astype(np.int64),
        "whole": whole,
        "shared": np.bitwise_count(shared & fleet.full).astype(np.int64),
    }
    by_state["drained"] = np.where(fleet.ready, fleet.gpu_counts, 0) - sum(by_state.values())
    by_state["unplaced"] = np.where(fleet.ready, 0, fleet.gpu_counts)
    empty = (free == fleet.full) & (fleet.size > 0)
    leaves = fleet.fabric.leaf[empty & (fleet.fabric.leaf != NOBODY)]
    slow, slow_counts = slow_gpus(fleet.scores, fleet.machines, fleet.names)
    return ClusterState(
        at=reading.at,
        in_control=reading.in_control,
        names=fleet.names,
        models=[machine.model if machine else "" for machine in fleet.machines],
        gpus={name: column.tolist() for name, column in by_state.items()},
        not_ready=len(fleet.not_ready),
        slow=slow,
        slow_counts=slow_counts,
        closed=[(fleet.names[node], gpu) for node, mask in cluster.closed.items() for gpu in positions(mask)],
        islands=free_islands(free, cluster),
        stranded_gpus=stranded_gpus(nodes, cluster, free),
        empty_nodes=int(empty.sum()),
        empty_nodes_of_a_leaf=int(np.bincount(leaves).max(initial=0)) if leaves.size else 0,
        running=_running(reading.jobs),
        holds=_holds(reading.jobs, cluster) if job_info else [],
    )


def free_masks(nodes: Sequence[NodeFacts], cluster: Cluster) -> Ints:
    """Returns each node's mask of GPUs that a job could be given now."""
    up = np.fromiter((node.up for node in nodes), np.bool_, len(nodes))
    return np.asarray(np.where(up, cluster.fleet.full & ~(_used(nodes) | _shared(nodes, cluster)), 0))


def _used(nodes: Sequence[NodeFacts]) -> Ints:
    return np.fromiter((node.gpus_used for node in nodes), np.int64, len(nodes))


def _shared(nodes: Sequence[NodeFacts], cluster: Cluster) -> Ints:
    """Returns each node's mask of GPUs that packed jobs hold, or that have a guest."""
    masks = np.zeros(len(nodes), np.int64)
    for place, node in enumerate(nodes):
        if node.shared:
            masks[place] = sum(1 << gpu for gpu, percent in enumerate(node.shared) if percent)
    for place, sharers in cluster.sharers.items():
        masks[place] |= sharers.guest_mask
    return masks


def stranded_gpus(nodes: Sequence[NodeFacts], cluster: Cluster, free: Ints) -> float:
    """Returns the expected number of free GPUs that usual jobs cannot use where they are."""
    if not cluster.shapes:
        return 0.0
    parts = np.zeros((len(nodes), max((len(node.shared) for node in nodes), default=0) or 1), np.int64)
    for place, node in enumerate(nodes):
        for gpu, percent in enumerate(node.shared if node.up else ()):
            parts[place, gpu] = 100 - percent if percent else 0
    cpus = np.fromiter((max(0, node.cpus - node.cpus_used) for node in nodes), np.int64, len(nodes))
    counts = np.bitwise_count(free).astype(np.int64)
    return float(stranded(counts, parts, cpus, cluster.shapes).sum()) / 100.0


@lru_cache(maxsize=4_096)
def joined(shape: MachineShape, mask: int) -> tuple[int, ...]:
    """Returns the sizes of the sets of GPUs in a mask that NVLink joins, directly or through one another.

    >>> joined(MachineShape(((0, 1, 0), (1, 0, 0), (0, 0, 0)), ((6,) * 3,) * 3), 0b111)
    (2, 1)
    """
    left, sizes = set(positions(mask)), []
    while left:
        island, reached = set[int](), [left.pop()]
        while reached:
            gpu = reached.pop()
            island.add(gpu)
            near = {other for other in left if shape.gbps[gpu][other] > 0.0}
            left -= near
            reached += near
        sizes.append(len(island))
    return tuple(sorted(sizes, reverse=True))


def slow_gpus(
    scores: Mapping[str, np.ndarray], machines: Sequence[Machine | None], names: Sequence[str]
) -> tuple[list[tuple[str, int, str, float]], list[tuple[str, str, int]]]:
    """Returns the slowest GPUs with their scores, and the number of slow GPUs by model and application class."""
    found: list[tuple[str, int, str, float]] = []
    counts: Counter[tuple[str, str]] = Counter()
    for app_class, table in scores.items():
        for place, gpu in np.argwhere(table >= SLOW_FROM).tolist():
            machine = machines[place]
            if machine is not None and gpu < min(machine.size, MOST_GPUS):
                found.append((names[place], gpu, app_class, round(float(table[place, gpu]), 4)))
                counts[machine.model, app_class] += 1
    found.sort(key=lambda one: -one[3])
    return found[:MOST_SLOW], [(model, app_class, count) for (model, app_class), count in sorted(counts.items())]


def waiting_by_reason(queue: Iterable[Waiting]) -> dict[str, int]:
    """Counts the jobs that wait for GPUs by the reason in their plans; the waiting rest of an array counts as one."""
    counts = dict.fromkeys((*KINDS, STARTING, NEW), 0)
    for entry in queue:
        if entry.job.wants_gpus:
            reason = entry.job.known.get(BECAUSE, NEW)
            counts[STARTING if entry.last.start == 0.0 else reason if reason in counts else NEW] += 1
    return counts


def _running(jobs: Iterable[JobFacts]) -> dict[str, int]:
    counts = {"whole": 0, "packed": 0, "guest": 0}
    for job in jobs:
        if job.state in _HOLDS and job.wants_gpus:
            counts["guest" if job.rides else "packed" if job.share else "whole"] += 1
    return counts


def _holds(jobs: Iterable[JobFacts], cluster: Cluster) -> list[tuple[str, int]]:
    fleet, found = cluster.fleet, []
    for job in jobs:
        if job.state not in _HOLDS or not job.wants_gpus:
            continue
        masks = job.holds or (job.gpus or 0,) * len(job.nodes)
        for name, mask in zip(job.nodes, masks, strict=False):
            machine = fleet.machines[fleet.index[name]] if name in fleet.index else None
            if machine is not None:
                found += [(machine.gpus[gpu].uuid, job.id) for gpu in positions(mask) if gpu < machine.size]
    return found
