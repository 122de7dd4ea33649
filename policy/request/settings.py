"""What the site decides about places; light enough for every command that reads berth.conf."""

from dataclasses import dataclass

from policy.request.locality import SizeRule
from policy.request.tiers import Rules


@dataclass(frozen=True, slots=True)
class Sharing:
    """The site's rules for packed jobs, and for hosts and guests."""

    multi_user: bool = False
    """Whether jobs of several users may be on one GPU under one MPS server."""
    way: str = "mps"
    """`mps`: at the same time; `time`: in turn, which any two users may."""
    gpu_mem_reserve: int = 1_024
    """MiB of each shared GPU that no packed job is granted: the MPS server and the jobs' contexts need them."""
    apart: frozenset[int] = frozenset()
    """Users whose programs brought MPS down lately. No setting: berthd learns it from the nodes."""
    foes: frozenset[tuple[tuple[int, str], tuple[int, str]]] = frozenset()
    """Packed jobs, each by user and name, that are never put together. No setting either."""
    tier_default: Rules = ()
    """What jobs are that say nothing of their tier; `exclusive` where no rule fits."""
    tier_allowed: Rules = ()
    """Who may ask for which tiers; everybody for all where no rule fits."""
    guest_way: str = "time"
    """`mps`: guests and hosts run at the same time, whatever they say themselves; `time`: only where both say so."""
    guest_after: int | None = None
    """Seconds after which a waiting job of one GPU starts as a guest unasked; None: never."""
    profiles: str = ""
    """The file with what was measured of jobs, by which guests get their seats; empty: rules alone."""
    fit: str = ""
    """The predictor's fit; empty: the one that ships."""
    unsure: str = "try"
    """`try`: a guest may go where its host is promised nothing, and moves if that suffers; `wait`: it waits."""
    least_speed: int = 80
    """Percent of the speed with its share alone that each packed job of a GPU has to be promised; 0: nobody looks."""
    company_wait: int = 600
    """Seconds for which a packed job waits for such company, before it goes wherever there is room."""
    evict_grace: int = 0
    """Seconds between a guest's warning and its end; 0: no warning."""
    evict_signal: str = "USR1"
    """The warning."""

    @property
    def tiers(self) -> tuple[Rules, Rules]:
        """What jobs are that say nothing, and what they may ask for."""
        return self.tier_default, self.tier_allowed

    @property
    def mixes_users(self) -> bool:
        """Whether any two users may be on one GPU."""
        return self.multi_user or self.way == "time"


@dataclass(frozen=True, slots=True)
class Moving:
    """The site's rules for moving running jobs that say `--movable`."""

    enabled: bool = False
    grace: int = 60
    """Seconds that a job has to save its work before it is put back into the queue."""
    signal: str = "USR1"
    """What it is sent, where it names none itself (`--signal`)."""
    cost: int = 300
    """Seconds that a move costs a job that names no COST."""
    restart: int = 60
    """Seconds between a job's end here and its first work there: epilog, prolog, start."""
    margin: float = 2.0
    """How many times its cost a move has to gain."""
    after: int = 300
    """Seconds that a job has waited before others are moved for it."""
    per_job: int = 1
    """Moves of one job in an hour."""
    per_hour: int = 12
    """Moves of all jobs in an hour."""
    at_once: int = 4
    """Jobs that are moved for one that waits."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The plan's part of berth.conf."""

    locality_wait: int = 600
    locality_rules: tuple[SizeRule, ...] = ()
    locality_cap: int | None = None
    repin: bool = True
    pin_ahead: bool = True
    """Whether jobs are pinned to places that are not free yet; where Slurm preempts, only it knows what it frees."""
    exclude_others: int = 32
    """From how many nodes on a pinned job excludes all but its own, so that Slurm has less to test; 0 for never."""
    node_weight: bool = True
    """Whether nodes of less Weight are taken first, as Slurm does; links and scores decide within one weight."""
    most_moves: int = 50
    """Updates in one pass: each takes slurmctld's write locks."""
    sharing: Sharing = Sharing()
    moving: Moving = Moving()

    def excludes_others(self, nodes: int) -> bool:
        """Whether pinned jobs of a cluster of so many nodes exclude those that are not theirs."""
        return 0 < self.exclude_others <= nodes
