# SPDX-License-Identifier: Apache-2.0
"""Settings of the simulator of Slurm's scheduling, with slurm.conf's names if it has them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from policy.formats.errors import UsageError, nearest
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob
from policy.simulate.pal_rounds.events import NodeEvent
from topology.network.fabric import LEVELS

ORDERS = ("fifo", "las", "srtf", "srsf", "slurm")
DURATIONS = ("limit", "predicted", "true")


@dataclass(frozen=True, slots=True)
class LocalityRule:
    """Settings of `--locality=LEVEL:WAIT`: require a level, then relax it by one step after each wait."""

    level: str = "any"
    wait_s: float = 600.0
    splits: bool = False
    """Tells whether a job without a number of nodes may be split over nodes of the level, as under berthd."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UsageError(f"there is no locality level {self.level}{nearest(self.level, LEVELS)}")


@dataclass(frozen=True, slots=True)
class Quotas:
    """GPUs that each account may hold: GrpTRES of a virtual cluster."""

    gpus: Mapping[str, int] = field(default_factory=dict)
    """An account that is not named has no limit."""
    borrow_s: float = 0.0
    """A job over its quota may start if it is expected to end within this many seconds.

    It starts after all jobs within their quotas. The time bounds how long an account waits for the GPUs that it lent.
    0: hard quotas; infinity: work-conserving.
    """


@dataclass(frozen=True, slots=True)
class Delays:
    """The duration of each step in seconds, as on a test cluster of 64 nodes on one machine.

    Those of berthd come from a profile; values timed within a run were different and fitted less
    (docs/results/tables/replay.csv).
    """

    submit: float = 0.002
    """From the question to berthd until the job is in the queue."""
    launch: float = 0.03
    """From Slurm's decision to the job's first instruction."""
    end: float = 0.007
    """From the job's last instruction until slurmctld knows of its end."""
    notice: float = 0.02
    """From there until the Epilog's notice reaches berthd; without an Epilog, until slurmd reports the end."""
    epilog: float = 0.05
    """The rest of an epilog until slurmctld knows of its end; until then the node takes no job."""
    most_held_up: float = 0.03
    """The longest wait of an Epilog for berthd's answer."""
    main: float = 1.0
    """Between two checks of slurmctld for a requested main pass."""
    resolution: float = 60.0
    """`bf_resolution`: reservations begin and end at multiples of it."""
    tick: float = 0.25
    """berthd's `tick_ms`."""
    read: float = 0.01
    """berthd's read of Slurm's state."""
    plan: float = 0.003
    """A whole pass in which no job searches for a place that is not free yet."""
    look: float = 0.018
    """Added to a pass for each job that searches for such a place."""
    freed: float = 0.005
    """Planning for what one ended job has freed."""
    update: float = 0.003
    """Writing one pin."""
    hand_over: float = 0.2
    """Between snapshots for the answerer that follow notices."""
    reserve: float = 30.0
    """The time for which a place is kept for a job that Slurm does not show."""
    epilogs: bool = True
    """Tells whether the site has an Epilog, of which berthd's notices are a part.

    slurmctld then makes a pass when it ends.
    """
    lost_notices: float = 0.0
    """Part of the Epilogs' notices that never arrive."""

    def __post_init__(self) -> None:
        if min(self.main, self.tick, self.resolution) <= 0:
            raise UsageError("the intervals of main pass, resolution and tick must be greater than 0")


INSTANT = Delays(
    submit=0,
    launch=0,
    end=0,
    notice=0,
    epilog=0,
    most_held_up=0,
    read=0,
    plan=0,
    look=0,
    freed=0,
    update=0,
    hand_over=0,
    epilogs=False,
)
"""Delays of 0: nothing takes time."""

Rate = Callable[[TraceJob, Sequence[int], Sequence[int]], float]
"""Real over ideal run time of a job on these GPUs (a mask for each of its nodes)."""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """All settings of the simulator."""

    order: str = "fifo"
    """`fifo`, `las` (least attained service first), `srtf` and `srsf` (shortest time, or time x GPUs), `slurm`."""
    durations: str = "limit"
    """The run times that the plan assumes: the users' limits, predictions from history, or the truth."""
    default_queue_depth: int = 100
    """Jobs tried in one main pass."""
    backfill: bool = True
    bf_max_job_test: int = 500
    bf_interval_s: float = 30.0
    pinned: bool = False
    """Pin jobs as berthd does: a job that cannot start is pinned to its planned nodes.

    It then bars only those nodes, and does not stop the main pass.
    """
    locality: LocalityRule = field(default_factory=LocalityRule)
    localities: Mapping[str, LocalityRule] = field(default_factory=dict)
    """Settings for single jobs, by id."""
    quotas: Quotas = field(default_factory=Quotas)
    kill: bool = True
    """Tells whether a time limit ends a job."""
    requeue_cost_s: float = 0.0
    """Time that a requeued job loses when it starts again."""
    events: Sequence[NodeEvent] = ()
    """Slow nodes, and, with an infinite factor, nodes that are down."""
    after: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Jobs that are submitted so many seconds after another has ended, whatever the trace says."""
    rate: Rate | None = None
    """The run times on given GPUs; None: by the cost model and the scores."""
    berthd: bool = False
    """berthd's own code chooses places, by the policy: at submission, and again when something has changed.

    Slurm starts the pinned jobs. Those that berthd leaves to Slurm are placed as under plain Slurm.
    """
    site: Settings = field(default_factory=Settings)
    """berthd's settings."""
    delays: Delays | None = None
    """The time that everything takes, and backfill step by step; None: nothing takes time, and plans know all ends."""
    slurm: str = "24.11"
    """The Slurm version whose backfill is simulated step by step."""
    tree: bool = True
    """With delays: Slurm chooses nodes as topology/tree or topology/block does; False: as topology/flat."""
    history: bool = False
    """Tells whether the outcome keeps each segment that was written."""
    seed: int = 0
    """The seed of random values: Slurm's clock at the first job's submission, and the notices that are lost."""

    def __post_init__(self) -> None:
        for what, value, known in (("order", self.order, ORDERS), ("durations", self.durations, DURATIONS)):
            if value not in known:
                raise UsageError(f"{what}: there is no {value}{nearest(value, known)}; it is one of {', '.join(known)}")
        if self.bf_interval_s <= 0 or self.default_queue_depth < 1 or self.bf_max_job_test < 1:
            raise UsageError("bf_interval, default_queue_depth and bf_max_job_test must be greater than 0")
        if self.delays and self.durations == "predicted":
            raise UsageError("durations: predicted run times and delays cannot be had together; leave one of them out")

    @property
    def counts_cores(self) -> bool:
        """Tells whether jobs hold cores too."""
        return self.berthd or self.delays is not None
