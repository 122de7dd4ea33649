# SPDX-License-Identifier: Apache-2.0
"""Computes the resources in use on nodes between two looks at them, from the jobs that started and ended meanwhile.

A look at all nodes takes slurmctld long, under its lock, so on a large cluster most looks are only at jobs. A job's
CPUs and memory are divided equally over its nodes; the next look at the nodes corrects differences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from policy.formats import hostlist
from policy.formats.slurm_facts import NodeFacts
from policy.formats.wire import unescape
from policy.slurm import fields
from policy.slurm.by_library.program import JobRecord


class HeldPart(NamedTuple):
    """The resources that a job holds on one of its nodes."""

    gpus: int
    seats: int
    shared: tuple[int, ...]
    cpus: int
    mem: int


LEAVE_ALONE, NODE_US = 50, 58.0
"""The pause after a look at all nodes, as a multiple of its time; microseconds of that look per node."""
LEAST_LATE, MOST_LATE = 1.0, 10.0
"""Bounds of `nodes_late`, in seconds."""

Held = Mapping[str, HeldPart]
"""By node name, the part that a job holds."""
NOTHING: Held = {}


def nodes_late(count: int) -> float:
    """Returns by how many seconds a look at so many nodes may be late, by the rule of berth-slurm's gateway_read.c.

    >>> nodes_late(300), round(nodes_late(2_048), 3), nodes_late(10_000)
    (1.0, 5.939, 10.0)
    """
    return min(MOST_LATE, max(LEAST_LATE, LEAVE_ALONE * NODE_US * count / 1e6))


def held(record: JobRecord) -> Held:
    """Returns the parts that a job holds; none if it has no nodes or is over."""
    if record.over or not record.nodes:
        return NOTHING
    names = hostlist.expand(record.nodes)
    count = max(1, len(names))
    # A suspended job has released its CPUs.
    cpus = 0 if record.state == "SUSPENDED" else -(-record.cpus // count)
    mem = fields.mem(record.tres, record.count) or 0
    parts = [fields.gres_used(unescape(detail)) for detail in record.gres]
    parts += [fields.gres_used("")] * (count - len(parts))
    return {
        name: HeldPart(part.gpus, part.seats, part.shared, cpus, mem) for name, part in zip(names, parts, strict=False)
    }


def nodes_after(changes: Iterable[tuple[Held, Held]], nodes: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
    """Returns the nodes that change when jobs that held the first part of each pair hold the second one instead."""
    changed: dict[str, NodeFacts] = {}
    pairs = [(before, after) for before, after in changes if before != after]
    # First all releases: another job may have taken the same resources at once.
    for before, _ in pairs:
        for name, part in before.items():
            if (node := changed.get(name, nodes.get(name))) is not None:
                changed[name] = _without(node, part)
    for _, after in pairs:
        for name, part in after.items():
            if (node := changed.get(name, nodes.get(name))) is not None:
                changed[name] = _with(node, part)
    return {name: node for name, node in changed.items() if node != nodes[name]}


def _with(node: NodeFacts, part: HeldPart) -> NodeFacts:
    return replace(
        node,
        gpus_used=node.gpus_used | part.gpus,
        seats_used=node.seats_used | part.seats,
        shared=_sums(node.shared, part.shared, 1),
        cpus_used=min(node.cpus, node.cpus_used + part.cpus),
        mem_used=node.mem_used + part.mem,
    )


def _without(node: NodeFacts, part: HeldPart) -> NodeFacts:
    shared = _sums(node.shared, part.shared, -1)
    still = sum(1 << gpu for gpu, percent in enumerate(shared) if percent)
    return replace(
        node,
        gpus_used=node.gpus_used & ~part.gpus | still,
        seats_used=node.seats_used & ~part.seats,
        shared=shared,
        cpus_used=max(0, node.cpus_used - part.cpus),
        mem_used=max(0, node.mem_used - part.mem),
    )


def _sums(had: tuple[int, ...], part: tuple[int, ...], sign: int) -> tuple[int, ...]:
    sums = [max(0, one + sign * other) for one, other in zip_longest(had, part, fillvalue=0)]
    while sums and not sums[-1]:
        sums.pop()
    return tuple(sums)
