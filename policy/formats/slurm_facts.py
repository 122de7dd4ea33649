# SPDX-License-Identifier: Apache-2.0
"""The facts of one reading of Slurm: plain values, made by a gateway (policy.slurm) and used by the core."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.formats.job_plan import NOTHING, JobPlan
from policy.formats.plan_fields import OWNS


@dataclass(frozen=True, slots=True)
class Memory:
    """Default memory of a job that names none: MB per node, CPU or GPU; all None: the whole node."""

    per_node: int | None = None
    per_cpu: int | None = None
    per_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """The accounts, or the QOS, that a partition admits; in lower case, since Slurm ignores case."""

    only: frozenset[str] | None = None
    """Names that are admitted; None: all but those of `never`."""
    never: frozenset[str] = frozenset()

    @property
    def admits_all(self) -> bool:
        """Tells whether all names are admitted."""
        return self.only is None and not self.never


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Slurm's facts about a partition."""

    name: str
    default: bool = False
    up: bool = True
    """True if it takes new jobs and starts them."""
    drains: bool = False
    """True if it takes no new jobs, but starts those that wait (State=DRAIN)."""
    whole_nodes: bool = False
    apart: bool = False
    """True if it keeps nodes to one user, or blocks to one job (ExclusiveUser, ExclusiveTopo)."""
    time_limit: int | None = None
    """Time limit, in seconds, of a job that names none (DefaultTime, else MaxTime)."""
    memory: Memory = Memory()
    counts_cpus_by_gpu: bool = False
    """True if it has a DefCpuPerGPU, which Slurm cannot apply to GPUs of several types."""
    max_cpus: int | None = None
    """Most CPUs that its jobs may use of a node (MaxCPUsPerNode); None: all."""
    max_time: int | None = None
    """Most seconds that its jobs may ask for; None: any."""
    min_nodes: int = 0
    max_nodes: int | None = None
    tier: int = 1
    """PriorityTier: Slurm tries jobs of a higher tier first, whatever their priority."""
    for_all_groups: bool = True
    """True if any user may see and use it; of AllowGroups slurmctld reports for each job if its user is in them."""
    accounts: AdmissionRule = AdmissionRule()
    qos: AdmissionRule = AdmissionRule()
    topology: str = ""
    """Its own topology of topology.yaml; empty for the cluster's default."""

    @property
    def starts(self) -> bool:
        """Tells whether jobs that wait in it are started."""
        return self.up or self.drains

    def admits(self, limit: int | None, nodes: int | None) -> bool:
        """Tells whether its limits admit a job; None stands for a value that is not known."""
        if limit is not None and self.max_time is not None and limit > self.max_time:
            return False
        return nodes is None or (nodes >= self.min_nodes and (self.max_nodes is None or nodes <= self.max_nodes))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Slurm's facts about a node. In masks of GPUs, bit K is the GPU of GRES type gK."""

    name: str
    cpus: int
    cpus_used: int
    mem: int
    """MB that Slurm hands out, without the part that it keeps for the system."""
    mem_used: int
    threads: int
    up: bool
    completing: bool
    gpus: int
    """Number of GPUs that have a GRES type of their own."""
    loose: int
    """GPUs with another GRES type or none; they cannot be pinned."""
    seats: int
    gpus_used: int
    """Mask of GPUs that a gpu or shard job holds."""
    seats_used: int
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    shards: int = 0
    """Number of GPUs of which Slurm can count parts, in percent (GRES shard, 100 per GPU)."""
    shared: tuple[int, ...] = ()
    """Percent of each GPU that packed jobs hold, by position; empty if none does."""
    dynamic: bool = False
    """True if Slurm can forget it while it runs."""
    weight: int = 1
    """Slurm's Weight: nodes of less weight are taken first."""
    lost: bool = False
    """True if it is down or does not answer, so that Slurm ends the jobs there. One that drains is not lost."""
    cpus_kept: int = 0
    """CPUs per GPU that only jobs with GPUs get (RestrictedCoresPerGPU)."""
    models: frozenset[str] = frozenset()
    """GRES types of the GPUs in `loose`: a request can name one of them."""


_WAITS_FOR_ROOM = (
    "None",
    "Resources",
    "Priority",
    "ReqNodeNotAvail",
    "BadConstraints",
    "Nodes_required",
    "Reservation",
)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job of Slurm's queue, running or waiting."""

    id: int
    state: str
    partition: str
    priority: int
    submitted: int
    start: int | None
    end: int | None
    limit: int | None
    cpus: int
    nodes: tuple[str, ...]
    required: tuple[str, ...]
    """The nodes that it requires; those of its place if it `closes` its partition."""
    excluded: tuple[str, ...] = ()
    features: str = ""
    reason: str = "None"
    gpus: int | None = None
    """Mask of the GPUs pinned on each of its nodes; None if the request is untyped."""
    share: int = 0
    """Percent of each of its GPUs, for a packed job; 0 for whole GPUs."""
    guest: bool = False
    """True if it asks for a seat on its GPU and for no GPU."""
    plan: JobPlan | None = None
    """The plan that Berth keeps in its record; None if there is none."""
    user: int = 0
    count: int = 1
    """Least number of nodes that it asks for, or number that it holds."""
    mem: int | None = None
    """MB that it asks for on each node, or holds there; None if a gateway cannot tell."""
    holds: tuple[int, ...] = ()
    """Masks of the GPUs that it holds on each of `nodes`, typed or not; empty if a gateway cannot tell."""
    wants_gpus: bool = True
    """True if it asks for GPUs in any form; CPU-only jobs are planned for, but never pinned."""
    models: frozenset[str] = frozenset()
    """GPU models that its request names; empty if any will do."""
    array: int = 0
    """Job number of the array that it is a task of; 0 for none."""
    task: int | None = None
    tasks: str = ""
    """Tasks of an array's record that have not split off, such as `3-7,9`; they share `id` until then."""
    at_once: int | None = None
    """Most tasks of the array that may run at once (`%`)."""
    het: int = 0
    """Leader of the heterogeneous job that it is a component of; 0 for none."""
    reservation: str = ""
    licenses: str = ""
    account: str = ""
    name: str = ""
    """Job name that its user gave; free text."""
    begin: int | None = None
    """Earliest start of a waiting job."""
    own_extra: str | None = None
    """Its Extra without what Berth has written there; None if a gateway cannot tell."""
    planned: tuple[str, ...] = ()
    """The nodes on which Slurm plans to start it at `start`, for a job with GPUs that waits and requires no nodes."""
    expedited: bool = False
    """True if Slurm requeued it at the front, as a node was at fault (`--requeue=expedite`)."""
    closes: str | None = None
    """The mark of the list that alone keeps it on its place: it closes its partition (policy/plan/queue/closers.py).

    Empty if the list is not Berth's any more; None for all other jobs.
    """

    @property
    def known(self) -> JobPlan:
        """Returns its plan; an empty one if there is none."""
        return NOTHING if self.plan is None else self.plan

    @property
    def rides(self) -> bool:
        """Tells whether it is a guest that has not been given its GPU for good: other jobs may get that GPU too."""
        return self.guest and OWNS not in self.known

    @property
    def may_start(self) -> bool:
        """Tells whether it waits only for room, by Slurm's reason."""
        return self.reason.startswith(_WAITS_FOR_ROOM)

    def may_start_at(self, at: float) -> bool:
        """Tells whether the job waits only for room at a moment.

        Slurm may still give a begin time that has passed as the reason, and gives no such reason after an update.
        """
        if self.begin is not None and self.begin > at:
            return False
        return self.may_start or (self.reason.startswith("BeginTime") and self.begin is not None)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: nodes, or parts of them, that are set aside for a time."""

    start: int
    end: int
    nodes: tuple[str, ...]
    name: str = ""
    cores: tuple[tuple[str, int], ...] = ()
    """Mask of the cores that it takes of each node; empty if it takes whole nodes."""
    gpus: tuple[tuple[str, int], ...] = ()
    """Number of its GPUs on all nodes together, by GRES type; the type of all together is empty."""
    flags: frozenset[str] = frozenset()
    """Slurm's words, such as `MAGNETIC` and `FLEX`."""
    users: tuple[str, ...] = ()
    """Names of users that it admits, with a minus those that it does not; empty: any user."""
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """All data of one reading of Slurm. A record that has not changed since the last reading is the same object."""

    at: float
    nodes: tuple[NodeFacts, ...]
    jobs: tuple[JobFacts, ...]
    partitions: tuple[PartitionFacts, ...]
    reservations: tuple[Reservation, ...] = ()
    seen: frozenset[str] = frozenset()
    """Nonces found in the queue, also of ended jobs."""
    refused: frozenset[str] = frozenset()
    """Nonces of jobs whose requests Slurm refused at submission: it keeps a record of each."""
    memory: Memory = Memory()
    memory_counts: bool = True
    """True if Slurm hands out memory at all (CR_*_Memory)."""
    in_all_partitions: bool = False
    """True if Slurm takes a job for several partitions only if it can run in each of them (EnforcePartLimits=ALL)."""
    counted: frozenset[str] = frozenset()
    """GPU models that the site counts for limits and bills."""
    cpus_by_gpu: bool = False
    """True if jobs have a DefCpuPerGPU (JobDefaults), which Slurm cannot apply to GPUs of several types."""
    one_task_per_core: bool = False
    """True if Slurm gives each task a core of its own (CR_ONE_TASK_PER_CORE)."""
    limits_enforced: bool = False
    """True if Slurm holds jobs to the limits of accounts, users and QOS (AccountingStorageEnforce=limits)."""
    cluster: str = ""
    """Slurm's name of this cluster."""
    version: str = ""
    in_control: bool = True
    """True if the slurmctld of this host is the one in control."""
    federated: bool = False
    """True if the cluster is in a federation: other clusters may start its jobs, so Berth does not touch them."""
    wakes: bool = True
    """True if Slurm powers nodes up for the jobs that are pinned there (ResumeProgram)."""
    nodes_late: float = 1.0
    """Seconds by which the state of its nodes may be older than its jobs: nodes are looked at less often."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Jobs that are missing because Berth cannot read their records, each with the reason."""


@dataclass(frozen=True, slots=True)
class JobText:
    """Texts of one job's record that Berth reads and writes, exact to the byte."""

    id: int
    state: str
    user_id: int
    admin_comment: str
    extra: str
    required: str
    tres_per_node: str
    tres_per_job: str
    excluded: str = ""
    licenses: str = ""
    tres_per_task: str = ""
