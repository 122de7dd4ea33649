"""Settings of a simulation of berthd beside slurmctld: the jobs, the site's settings, and the delays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policy.formats.errors import UsageError
from policy.request.settings import Settings
from policy.simulate.jobs import TraceJob


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as its user submits it."""

    job: TraceJob
    """The job of the trace; one with 0 GPUs needs only cores."""
    cpus: int = 0
    """Cores on each of its nodes; 0: one for each GPU."""
    level: str = ""
    """The level at which its nodes, or GPUs, must meet for `wait` seconds."""
    wait: int = 0
    """Seconds after which the nearest possible nodes are accepted."""
    movable: float | None = None
    """Seconds that a move costs it while it runs; None: it has no `--movable`."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The duration of each step in seconds, as on a test cluster of 64 nodes on one machine.

    Those of berthd come from a profile; values timed within a run were different and fitted less
    (docs/results/tables.md).
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
    backfill: float = 2.0
    """`bf_interval`."""
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
    """Between pictures for the answerer that follow notices."""
    reserve: float = 30.0
    """`reserve_seconds`: the time for which a place is kept for a job that Slurm does not show."""

    def __post_init__(self) -> None:
        if min(self.main, self.backfill, self.tick, self.resolution) <= 0:
            raise UsageError("the intervals of main pass, backfill, resolution and tick must be greater than 0")


Rate = Callable[[TraceJob, Sequence[int], Sequence[int]], float]
"""Real over ideal run time of a job on these GPUs (a mask for each of its nodes)."""


@dataclass(frozen=True, slots=True)
class PinnedSettings:
    """Settings of a simulated cluster, with berthd or without."""

    berthd: bool = True
    """False: plain Slurm, whose users set `--switches` with the same wait."""
    site: Settings = field(default_factory=Settings)
    delays: Delays = field(default_factory=Delays)
    rate: Rate | None = None
    """None: by the cost model."""
    splits: bool = True
    """Tells whether a job that names a level and no number of nodes may be split over nodes."""
    kill: bool = True
    """Tells whether a time limit ends a job."""
    foresees: bool = False
    """Use each job's run time as its time limit, and its real end once it runs: an oracle for comparison."""
    epilog: bool = True
    """Tells whether the site has an Epilog, of which berthd's notices are a part.

    slurmctld then makes a pass when it ends.
    """
    slurm: str = "24.11"
    """The Slurm version whose backfill is simulated."""
    queue_depth: int = 2_000
    """Jobs tried in a main pass, and in backfill."""
    lost_notices: float = 0.0
    """Part of the Epilogs' notices that never arrive."""
    history: bool = False
    """Tells whether the outcome keeps each segment that was written."""
    seed: int = 0
    """The seed of random values: Slurm's clock at the first job's submission, and the notices that are lost."""
