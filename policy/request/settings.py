# SPDX-License-Identifier: Apache-2.0
"""The site's settings about places; without heavy imports, as every command that reads berth.conf needs them."""

from dataclasses import dataclass

from policy.request.locality import SizeRule
from policy.request.tiers import Rules


@dataclass(frozen=True, slots=True)
class Sharing:
    """The site's rules for packed jobs, and for hosts and guests."""

    multi_user: bool = False
    """True if jobs of several users may be on one GPU under one MPS server."""
    way: str = "mps"
    """`mps`: jobs run at the same time; `time`: in turn, which any two users may."""
    gpu_mem_reserve: int = 1_024
    """MiB of each shared GPU that no packed job is granted, for the MPS server and the jobs' contexts."""
    apart: frozenset[int] = frozenset()
    """Users whose programs made MPS fail lately. Not a setting: berthd learns it from the nodes."""
    foes: frozenset[tuple[tuple[int, str], tuple[int, str]]] = frozenset()
    """Packed jobs, each by user and name, that never share a GPU. Not a setting either."""
    tier_default: Rules = ()
    """Tier of jobs that name none; `exclusive` if no rule fits."""
    tier_allowed: Rules = ()
    """Tiers that jobs may ask for; all tiers if no rule fits."""
    guest_way: str = "time"
    """`mps`: guests and hosts always run at the same time; `time`: only if both ask for that."""
    guest_after: int | None = None
    """Seconds after which a waiting job of one GPU may start as a guest without asking for it; None: never."""
    profiles: str = ""
    """File with the measured profiles of jobs, by which guests get their seats; empty: only rules."""
    fit: str = ""
    """File with the predictor's fit; empty: the one that ships with Berth."""
    unsure: str = "try"
    """`try`: a guest may join a host without a promised speed, and moves if that host suffers; `wait`: it waits."""
    trials: int = 50
    """Guests of an owner and day whose effect on its jobs is not known before; 0: none, as with `wait`."""
    least_speed: int = 80
    """Percent of its speed with its share alone that each packed job of a GPU must be promised; 0: not checked."""
    company_wait: int = 600
    """Seconds for which a packed job waits for such a GPU; then it goes wherever there is room."""
    evict_grace: int = 0
    """Seconds between a guest's warning and its end; 0: no warning."""
    evict_signal: str = "USR1"
    """Signal of the warning."""

    @property
    def mixes_users(self) -> bool:
        """Tells whether any two users may be on one GPU."""
        return self.multi_user or self.way == "time"


@dataclass(frozen=True, slots=True)
class RelocationRules:
    """The site's rules for moving running jobs that say `--movable`."""

    enabled: bool = False
    grace: int = 60
    """Seconds that a job has to save its work before it is requeued."""
    signal: str = "USR1"
    """Signal that it is sent, if it names none itself (`--signal`)."""
    cost: int = 300
    """Seconds that a move costs a job that names no COST."""
    restart: int = 60
    """Seconds between a job's end on the old nodes and its first work on the new ones: epilog, prolog, start."""
    after: int = 300
    """Seconds that a job must have waited before others are moved for it."""
    per_job: int = 1
    """Most moves of one job in an hour."""
    per_hour: int = 12
    """Most moves of all jobs in an hour."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The plan's part of berth.conf."""

    locality_wait: int = 600
    locality_rules: tuple[SizeRule, ...] = ()
    locality_cap: int | None = None
    pin_ahead: bool = True
    """True if jobs are pinned to places that are not free yet. If Slurm preempts, only it knows what it frees."""
    look_ahead: bool = True
    """True if a job that could start now may let others go first, so that all together end sooner."""
    exclude_others: int = 32
    """Cluster size, in nodes, from which on a pinned job excludes all other nodes, so Slurm tests fewer; 0: never."""
    most_moves: int = 50
    """Most updates in one pass: each takes slurmctld's write locks."""
    sharing: Sharing = Sharing()
    moving: RelocationRules = RelocationRules()
