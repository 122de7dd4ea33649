"""What can be chosen about a simulation of berthd beside slurmctld: the jobs, the site's settings, and the delays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from policy.formats.errors import UsageError
from policy.request.settings import Settings
from policy.simulate.jobs import Job


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as its user submits it."""

    job: Job
    """With 0 GPUs a job that needs only cores."""
    cpus: int = 0
    """On each of its nodes; 0: one for each GPU."""
    level: str = ""
    """Its nodes, or GPUs, must be this near to each other..."""
    wait: int = 0
    """...for so many seconds; then the nearest will do."""
    movable: float | None = None
    """Seconds that a move costs it while it runs; None: it does not say `--movable`."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds that things take, as on a test cluster of 64 nodes on one machine.

    Those of berthd come from a profile; timed in a run they were others, and fitted less (docs/measurements.md).
    """

    submit: float = 0.002
    """From the question to the job in the queue."""
    launch: float = 0.03
    """From Slurm's decision to the job's first instruction."""
    end: float = 0.007
    """From the job's last instruction to slurmctld's knowledge of it."""
    notice: float = 0.02
    """From there to the Epilog's notice at berthd; where there is no Epilog, to slurmd's word for it."""
    epilog: float = 0.05
    """What else there is to an epilog until slurmctld knows that it ended; meanwhile the node takes no job."""
    most_held_up: float = 0.03
    """How long an Epilog waits for berthd's answer at most."""
    main: float = 1.0
    """Between two looks of slurmctld at whether a main pass was asked for."""
    backfill: float = 2.0
    """`bf_interval`."""
    resolution: float = 60.0
    """`bf_resolution`: reservations begin and end at multiples of it."""
    tick: float = 0.25
    """berthd's `tick_ms`."""
    read: float = 0.01
    """berthd's look at Slurm."""
    plan: float = 0.003
    """A whole pass in which no job looks for a place that is not free yet."""
    look: float = 0.018
    """What each job adds to a pass that does."""
    freed: float = 0.005
    """Planning what one ended job has freed."""
    update: float = 0.003
    """Writing one pin."""
    hand_over: float = 0.2
    """Between pictures for the answerer that notices give rise to."""
    reserve: float = 30.0
    """`reserve_seconds`: how long a place is kept for a job that Slurm does not show."""

    def __post_init__(self) -> None:
        if min(self.main, self.backfill, self.tick, self.resolution) <= 0:
            raise UsageError("the intervals of main pass, backfill, resolution and tick must be greater than 0")


Rate = Callable[[Job, Sequence[int], Sequence[int]], float]
"""Real over ideal run time of a job on these GPUs (a mask for each of its nodes)."""


@dataclass(frozen=True, slots=True)
class PinnedSettings:
    """How a cluster under berthd, or without it, is played."""

    berthd: bool = True
    """False: plain Slurm, whose users say `--switches` with the same wait."""
    site: Settings = field(default_factory=Settings)
    delays: Delays = field(default_factory=Delays)
    rate: Rate | None = None
    """None: what the cost model says."""
    kill: bool = True
    """Whether a time limit ends a job."""
    foresees: bool = False
    """Whether each job's run time stands for its time limit, and its real end is known once it runs: an oracle."""
    epilog: bool = True
    """Whether the site has an Epilog: slurmctld then makes a pass when it ends. berthd's notices are part of it."""
    slurm: str = "24.11"
    """Whose backfill it is."""
    queue_depth: int = 2_000
    """Jobs tried in a main pass, and in backfill."""
    lost_notices: float = 0.0
    """Part of the Epilogs' notices that never arrive."""
    seed: int = 0
    """For what is left to chance: what Slurm's clock shows when the first job comes, which notices are lost."""
