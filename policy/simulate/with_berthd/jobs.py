"""A job in the simulation of berthd beside slurmctld: slurmctld's record of it, and what berthd reads of that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from policy.formats.slurm_facts import JobFacts
from policy.request.demand import A_YEAR
from policy.simulate.with_berthd.settings import Submission
from policy.simulate.world import PARTITION

EPOCH = 1_000_000
"""The simulation's first moment, as Slurm writes times: whole seconds."""


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """slurmctld's record of one job."""

    id: int
    asked: Submission
    nodes_wanted: int
    k: int
    """GPUs on each of its nodes."""
    nonce: str
    free: bool = False
    """Tells whether its number of nodes is left to its pin."""
    cpus_each: int = 0
    """Cores on each node of such a job, whatever their number."""
    foreseen: bool = False
    """Tells whether its end is known beforehand."""
    entered: float | None = None
    """The time at which it entered the queue."""
    state: str = "PENDING"
    reason: str = "None"
    pin: tuple[int, ...] = ()
    """The nodes that it is pinned to; empty where Slurm is free to choose."""
    pin_mask: int = 0
    segment: Mapping[str, str] | None = None
    tried: float | None = None
    """The time at which Slurm itself first searched nodes for it."""
    started: float = 0.0
    """The time at which slurmctld started it."""
    begun: float = 0.0
    """The time at which it began to run."""
    ended: float = 0.0
    nodes: tuple[int, ...] = ()
    masks: tuple[int, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    """Cores that it holds on each of its nodes, by socket."""
    epilogs: int = 0
    """The number of its nodes that still run its epilog."""
    updates: int = 0
    left: float | None = None
    """Seconds of ideal run time that are left after it was requeued; None: all of them."""
    debt: float = 0.0
    """Seconds at its next start in which it computes nothing new."""
    begin: float | None = None
    """The earliest time of its next start, after it was requeued."""
    run: int = 0
    """Grows with each start, so that the end of an earlier run is recognised as stale."""
    runs: list[tuple[float, float, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """Earlier runs: start, end, nodes and masks."""
    facts: JobFacts | None = None

    @property
    def cpus(self) -> int:
        """Cores on each of its nodes."""
        return self.asked.cpus or self.cpus_each or max(1, self.k)

    def pin_to(self, nodes: tuple[int, ...], mask: int) -> None:
        """Pins it to GPUs of these nodes, of which it then has as many."""
        self.pin, self.pin_mask = nodes, mask
        if self.free and nodes:
            self.nodes_wanted, self.k = len(nodes), mask.bit_count()

    @property
    def first_begun(self) -> float:
        """The time at which its first run began."""
        return self.runs[0][0] if self.runs else self.begun

    @property
    def limit(self) -> int:
        """Seconds that it may run; Slurm counts whole minutes."""
        if self.foreseen:
            return max(1, ceil(self.asked.job.work))
        limit = self.asked.job.limit
        return A_YEAR if limit is None else min(A_YEAR, 60 * ceil(limit / 60))

    @property
    def end_by_limit(self) -> float:
        """The time at which its time limit ends it, or its real end where that is known."""
        return self.ended if self.foreseen else self.started + self.limit

    def as_facts(self, names: tuple[str, ...]) -> JobFacts:
        """Returns what a gateway would read; the same object until something changes."""
        if self.facts is None:
            runs = self.state == "RUNNING"
            start = EPOCH + int(self.started) if runs else None
            pinned = bool(self.pin)
            self.facts = JobFacts(
                id=self.id,
                state=self.state,
                partition=PARTITION,
                priority=int(self.asked.job.priority),
                submitted=EPOCH + int(self.entered or 0),
                start=start,
                end=self._end_of(start) if start is not None else None,
                limit=self.limit,
                cpus=self.cpus * self.nodes_wanted,
                nodes=tuple(names[node] for node in self.nodes),
                required=tuple(names[node] for node in self.pin),
                reason=self.reason if self.begin is None else "BeginTime",
                gpus=self.pin_mask if pinned else None,
                segment=self.segment,
                count=self.nodes_wanted,
                mem=0,
                holds=self.masks if runs else (),
                wants_gpus=self.k > 0,
                begin=None if self.begin is None else EPOCH + ceil(self.begin),
            )
        return self.facts

    def _end_of(self, start: int) -> int:
        return EPOCH + ceil(self.ended) if self.foreseen else start + self.limit

    def changed(self) -> None:
        """Notes that the record has changed."""
        self.facts = None
