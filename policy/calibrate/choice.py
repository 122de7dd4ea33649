# SPDX-License-Identifier: Apache-2.0
"""Chooses the nodes to measure next, and measurements that make way for waiting jobs; pure, on one reading of Slurm.

A measurement has the lowest priority and a short limit, so that Slurm never starts it instead of a job that waits. What
it can still cost is the rest of its minute, to a job that comes or could start while it runs. So it makes way for every
waiting job that could use its node.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from policy.calibrate.campaign import Campaign
from policy.formats.errors import FormatError
from policy.formats.slurm_facts import JobFacts, NodeFacts, Reading

_DAY_MIN = 24 * 60


@dataclass(frozen=True, slots=True)
class Window:
    """Part of the day, in minutes since midnight; one that ends before it begins goes over midnight."""

    begin: int
    end: int

    def holds(self, minute: int) -> bool:
        """Tells whether this minute of the day lies in it."""
        return (minute - self.begin) % _DAY_MIN < (self.end - self.begin) % _DAY_MIN


def parse_window(text: str) -> Window:
    """Read FROM-TO, such as 22:00-06:30."""
    begin, dash, end = text.partition("-")
    if not dash or _minutes(begin) == _minutes(end):
        raise FormatError(f"{text!r} is no window; write it as 22:00-06:30")
    return Window(_minutes(begin), _minutes(end))


def _minutes(text: str) -> int:
    hours, colon, minutes = text.strip().partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and int(hours) < 24 and int(minutes) < 60):
        raise FormatError(f"{text!r} is no time of day; write it as 22:00")
    return int(hours) * 60 + int(minutes)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that an admin gives a campaign."""

    window: Window | None = None
    at_once: int = 8
    limit_s: int = 120
    """Time limit of one measurement's job."""
    tries: int = 3


def measurable(reading: Reading, partition: str = "") -> tuple[str, ...]:
    """Nodes with GPUs, in a partition that is up."""
    up = {one.name for one in reading.partitions if one.up and partition in {"", one.name}}
    return tuple(sorted(node.name for node in reading.nodes if (node.gpus or node.loose) and node.partitions & up))


def free(node: NodeFacts, reading: Reading, limit_s: float) -> bool:
    """Tells whether no job uses the node or is about to, and it is not set aside."""
    idle = node.up and not node.completing and not (node.cpus_used or node.gpus_used or node.seats_used)
    if not idle or any(node.shared):
        return False
    if any(
        node.name in one.nodes and one.start < reading.at + limit_s and one.end > reading.at
        for one in reading.reservations
    ):
        return False
    return not any(node.name in job.required for job in reading.jobs if _waits(job))


def next_nodes(
    campaign: Campaign,
    rules: Rules,
    reading: Reading,
    now: float,
    minute: int,
    last: Mapping[str, float],
    own_jobs: Collection[int] = (),
) -> tuple[str, ...]:
    """Nodes to measure now, those first that were measured longest ago (`last`: when, by node).

    `minute` is that of the day, for the window.
    """
    if rules.window and not rules.window.holds(minute):
        return ()
    room = rules.at_once - campaign.count("running")
    facts, able = {node.name: node for node in reading.nodes}, set(measurable(reading))
    ready = [
        name
        for name, one in campaign.nodes.items()
        if one.state == "waiting" and one.not_before <= now and name in able
    ]
    ready = [name for name in ready if free(facts[name], reading, rules.limit_s)]
    # A node that a waiting job could use would have to make way at once.
    wanted = to_make_way(reading, dict.fromkeys(ready, 0), own_jobs, stuck=())
    ready = [name for name in ready if name not in wanted]
    return tuple(sorted(ready, key=lambda name: (last.get(name, 0.0), name))[: max(room, 0)])


def to_make_way(
    reading: Reading, ours: Mapping[str, int], own_jobs: Collection[int], stuck: Collection[int]
) -> dict[str, int]:
    """Nodes among `ours` (with the number of the job that measures there) that waiting jobs need, and for which job.

    A job gets as many as it may need. For jobs in `stuck`, which were given some before and still wait, all that
    they could use make way: what keeps them is not understood.
    """
    facts = {node.name: node for node in reading.nodes}
    leaving: dict[str, int] = {}
    for job in sorted(reading.jobs, key=lambda one: -one.priority):
        if not _waits(job) or job.id in own_jobs:
            continue
        usable = [name for name in ours if name in facts and name not in leaving and _could_use(job, facts[name])]
        if not usable or job.count > len(usable) + _roomy(job, reading.nodes, ours):
            continue
        usable.sort(key=lambda name: (name not in job.required, -ours[name]))
        some = len(usable) if job.id in stuck else min(job.count * max(_tasks(job), 1), len(usable))
        leaving |= dict.fromkeys(usable[:some], job.id)
    return leaving


def _waits(job: JobFacts) -> bool:
    return job.state in {"PENDING", "ARRAY"} and job.may_start and not job.reservation


def _tasks(job: JobFacts) -> int:
    """Returns how many tasks of an array's record wait, as far as its text tells."""
    return sum(_range(part) for part in job.tasks.split(",")) if job.tasks else 1


def _range(part: str) -> int:
    first, dash, last = part.partition(":")[0].partition("-")
    return int(last) - int(first) + 1 if dash and first.isdecimal() and last.isdecimal() else 1


def _could_use(job: JobFacts, node: NodeFacts) -> bool:
    """Tells whether the node may be one of this job's, as far as its request is understood: when in doubt, it is."""
    if job.partition and not node.partitions & frozenset(job.partition.split(",")):
        return False
    # Places that Berth wrote are no wish of the user's: it finds another as soon as there is one.
    if job.required and job.plan is None and node.name not in job.required:
        return False
    words = job.features.split("&")
    plain = all(word.replace("_", "").replace("-", "").isalnum() for word in words)
    return node.name not in job.excluded and not (plain and not node.features.issuperset(words))


def _roomy(job: JobFacts, nodes: Sequence[NodeFacts], ours: Iterable[str]) -> int:
    """Other nodes that may have room for a part of the job."""
    taken = set(ours)
    return sum(
        node.up and node.cpus_used < node.cpus and node.name not in taken and _could_use(job, node) for node in nodes
    )
