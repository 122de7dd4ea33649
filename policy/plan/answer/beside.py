# SPDX-License-Identifier: Apache-2.0
"""Looks at a cluster that runs without Berth: which jobs have badly linked, spread or slow GPUs, and which wait.

Everything comes from one reading of Slurm and from descriptions of the machines. Nothing here changes a job.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from policy.cluster.fleet import Fleet
from policy.formats.errors import FormatError, NotNow
from policy.formats.job_plan import JobPlan
from policy.formats.plan_fields import ASKED, CPUS, LATER, MEM, STATE, K, N
from policy.formats.slurm_facts import JobFacts, Reading
from policy.placement.base import Berth, Policy
from policy.plan.jobs.waiting_jobs import WAITS, Reader
from policy.plan.ledger.book import Book
from policy.plan.ledger.changes import Move
from policy.plan.ledger.places import in_first_part
from policy.plan.ledger.tracker import HOLDING, open_book
from policy.plan.queue.plan import Plan
from policy.request.constraint import conditions, joined
from policy.request.demand import Demand
from topology.sets.tables import NO_LINKS, Joined
from topology.sets.wiring import positions

SLOW = 1.1
"""A GPU with a score from here on is called slow, as in `berth scores show --slow`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The GPUs that a job got, and the best GPUs that were free at that moment."""

    got: Berth
    best: Berth

    @property
    def gain(self) -> float:
        """Returns by how much shorter the job is predicted to run on the best GPUs; 0.05 is five percent."""
        return 1.0 - self.best.cost / self.got.cost

    @property
    def better_links(self) -> bool:
        """Tells whether the best GPUs are better linked."""
        return self.best.cut > self.got.cut


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job, where it lies, and how its place could be better."""

    job: JobFacts
    got: Berth
    best: Berth | None = None
    """The best GPUs among its own and those that are free now; None if these are its own."""
    idle: Joined = NO_LINKS
    """The links of the best set of its size on an empty node of its kind."""
    leaves: int = 0
    """Number of leaves that it lies in; 0 if not known."""
    leaves_needed: int = 0
    nodes_needed: int = 0
    slow: tuple[tuple[str, int, float], ...] = ()
    """Node, position and score of each slow GPU that it holds."""

    @property
    def unlinked(self) -> bool:
        """Tells whether a pair of its GPUs has no NVLink, though its node has a set of that size with NVLink."""
        return self.got.min_gbps == 0 < self.idle.min_gbps

    @property
    def weaker(self) -> bool:
        """Tells whether a collective on its GPUs is slower than on the best set of its node."""
        return self.got.cut < self.idle.cut

    @property
    def spread(self) -> bool:
        """Tells whether it lies in more leaves than it needs."""
        return self.leaves > self.leaves_needed

    @property
    def scattered(self) -> bool:
        """Tells whether it lies on more nodes than its GPUs need."""
        return len(self.got.nodes) > self.nodes_needed > 0


@dataclass(slots=True)
class Seen:
    """Holds the result of one look at the cluster."""

    gpus: int = 0
    free: int = 0
    nodes: int = 0
    without_links: tuple[str, ...] = ()
    """GPU nodes of whose links nothing is known."""
    running: list[RunningJob] = field(default_factory=list)
    unread: int = 0
    """Running GPU jobs whose GPUs are not known, or that lie on nodes without a description."""
    waits: dict[str, list[JobFacts]] = field(default_factory=dict)
    """Waiting GPU jobs by Slurm's reason."""
    planned: list[Move] = field(default_factory=list)
    """Places that Berth's plan has for waiting jobs, in the order of the queue."""


class Onlooker:
    """Looks at readings of one fleet."""

    def __init__(self, fleet: Fleet, described: frozenset[str], policy: Policy, plan: Plan) -> None:
        """`described` are the nodes whose links are known; of the others only the number of GPUs is."""
        self._fleet, self._described, self._policy, self._plan = fleet, described, policy, plan
        self._sizes = _largest(fleet.fabric.leaf.tolist())

    def look(self, reading: Reading, asked: Mapping[int, int]) -> Seen:
        """Looks at a reading; `asked` are the GPUs that each waiting job asks for, as far as known."""
        book = open_book(self._fleet, reading)
        seen = Seen(
            gpus=int(self._fleet.gpu_counts.sum()),
            free=_free(reading),
            nodes=int((self._fleet.gpu_counts > 0).sum()),
            without_links=tuple(
                name
                for name, count in zip(self._fleet.names, self._fleet.gpu_counts, strict=True)
                if count and name not in self._described
            ),
        )
        for job in holding(reading):
            found = self.running(book, job)
            if found is None:
                seen.unread += 1
            else:
                seen.running.append(found)
        waiting = [job for job in reading.jobs if job.state in WAITS and job.wants_gpus]
        for job in waiting:
            seen.waits.setdefault(job.reason, []).append(job)
        seen.planned = self._planned(book, reading, asked)
        return seen

    def running(self, book: Book, job: JobFacts) -> RunningJob | None:
        """Compares one running job; None where its GPUs or its nodes are not known."""
        compared = beside(book, job, self._policy, Reader(self._fleet))
        if compared is None:
            return None
        got = compared.got
        k = got.masks[0].bit_count()
        total = sum(mask.bit_count() for mask in got.masks)
        largest = max(int(self._fleet.size[node]) for node in got.nodes)
        machine = self._fleet.machines[got.nodes[0]] if len(got.nodes) == 1 else None
        leaves, needed = self._leaves(got.nodes)
        return RunningJob(
            job,
            got,
            compared.best if self._known(compared) and (compared.better_links or compared.gain > 0) else None,
            self._fleet.tables.at_best(machine, k) if machine else NO_LINKS,
            leaves,
            needed,
            math.ceil(total / largest) if largest else 0,
            tuple(self._slow(got)),
        )

    def _known(self, compared: Comparison) -> bool:
        return all(name in self._described for name in (*compared.got.names, *compared.best.names))

    def _leaves(self, nodes: Sequence[int]) -> tuple[int, int]:
        groups = self._fleet.fabric.leaf[list(nodes)].tolist()
        if len(nodes) < 2 or min(groups) < 0:
            return 0, 0
        return len(set(groups)), math.ceil(len(nodes) / max(self._sizes.values()))

    def _slow(self, berth: Berth) -> Iterable[tuple[str, int, float]]:
        scores = self._fleet.scores
        table = scores.get("compute", next(iter(scores.values()), None))
        if table is None:
            return
        for node, mask in zip(berth.nodes, berth.masks, strict=True):
            for place in positions(mask):
                if (score := float(table[node, place])) >= SLOW:
                    yield self._fleet.names[node], place, score

    def _planned(self, book: Book, reading: Reading, asked: Mapping[int, int]) -> list[Move]:
        """Plans the waiting jobs as berthd would if it had answered for them."""
        jobs = [_asking(job, asked.get(job.id, 0), self._fleet) if job.state in WAITS else job for job in reading.jobs]
        return [change for change in self._plan.replan(book, jobs) if isinstance(change, Move)]


def holding(reading: Reading) -> list[JobFacts]:
    """Returns the jobs that hold whole GPUs now."""
    return [job for job in reading.jobs if job.state in HOLDING and job.wants_gpus and not (job.share or job.guest)]


def beside(book: Book, job: JobFacts, policy: Policy, reader: Reader) -> Comparison | None:
    """Compares what a running job holds with the best that its own and the free GPUs offer; None if not known."""
    fleet = book.fleet
    nodes = [fleet.index[name] for name in job.nodes if name in fleet.index]
    if not nodes or not (len(nodes) == len(job.nodes) == len(job.holds)) or not all(job.holds):
        return None
    if not all(fleet.ready[nodes]):
        return None
    count = len(nodes)
    k = max(mask.bit_count() for mask in job.holds)
    named = (("req_nodes", ",".join(job.required)),) if len(job.required) == count else None
    told = job.known.having(N(count), K(k), CPUS(-(-job.cpus // count)), MEM(job.mem or 0), ASKED(named))
    try:
        demand = reader.read(replace(_by_features(job), plan=told, required=()), book.cluster.at).demand
    except FormatError:
        return None
    # What only Slurm understands of a request may forbid any other place.
    bound = job.reservation or 0 < len(job.required) < count or conditions(job.features) is None
    if bound or any(mask.bit_count() != k for mask in job.holds):
        # Berth gives each node of a job as many GPUs; such a job has no other place to be compared with.
        got = Policy.spread(demand, book.cluster.now(demand.limit), nodes, job.holds, "what Slurm chose")
        return Comparison(got, got)
    found = compare(book, demand, nodes, job.holds, policy)
    # Which GPUs of a node with several models are of the one that the job named is not known.
    mixed = bool(job.models) and any(len(fleet.models[node]) > 1 for node in found.best.nodes)
    return Comparison(found.got, found.got) if mixed else found


def compare(book: Book, demand: Demand, nodes: Sequence[int], masks: Sequence[int], policy: Policy) -> Comparison:
    """Chooses again as if the job's GPUs were free, and compares."""
    view = book.cluster.now(demand.limit)
    here = list(nodes)
    free, cpus, mem = view.free.copy(), view.cpus.copy(), view.mem.copy()
    free[here] |= np.array(masks, np.int64)
    cpus[here] += view.fleet.cpus[here] if demand.cpus is None else demand.cpus
    mem[here] += view.fleet.mem[here] if demand.mem is None else demand.mem
    then = replace(view, free=free, cpus=cpus, mem=mem)
    got = Policy.spread(demand, then, nodes, masks, "what Slurm chose")
    try:
        best = in_first_part(demand, lambda part: policy.place(part, then))
    except NotNow:
        best = got
    # Links alone may make a set better that has the same cost. A set with a higher cost is not better.
    return Comparison(got, best if best.cost <= got.cost else got)


def _by_features(job: JobFacts) -> JobFacts:
    """Returns the job as if it asked for its GPU models by feature: nodes of a model count as having a feature."""
    return replace(job, features=joined(job.features, *sorted(job.models)))


def _asking(job: JobFacts, gpus: int, fleet: Fleet) -> JobFacts:
    """Returns a waiting job as if berthd had answered for it; one whose request is not understood stays as it is."""
    if not gpus or job.plan is not None:
        return job
    largest = int(fleet.size.max(initial=0))
    count = max(1, job.count, math.ceil(gpus / largest) if largest else 1)
    if gpus % count:
        return job
    cpus, mem = -(-job.cpus // count), job.mem or 0
    named = (("req_nodes", ",".join(job.required)),) if job.required else None
    told = JobPlan.of(STATE(LATER), N(count), K(gpus // count), CPUS(cpus), MEM(mem), ASKED(named))
    return replace(_by_features(job), plan=told)


def _largest(groups: Sequence[int]) -> dict[int, int]:
    sizes: defaultdict[int, int] = defaultdict(int)
    for group in groups:
        sizes[group] += 1
    return sizes or {0: 1}


def _free(reading: Reading) -> int:
    """Counts the GPUs of open nodes that no job holds."""
    counts = [node.gpus + node.loose - node.gpus_used.bit_count() for node in reading.nodes if node.up]
    return int(np.sum(counts, dtype=np.int64))
