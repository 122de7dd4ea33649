"""What one reading of Slurm says: plain values, made by a gateway (policy.slurm), used by the core."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Memory:
    """Default memory where a job names none: MB for each node, CPU or GPU; all None: the whole node."""

    per_node: int | None = None
    per_cpu: int | None = None
    per_gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """The accounts, or the QOS, that a partition admits; in small letters, since Slurm does not tell them apart."""

    only: frozenset[str] | None = None
    """None: any but those of `never`."""
    never: frozenset[str] = frozenset()

    @property
    def admits_all(self) -> bool:
        """Whether there is nothing to ask."""
        return self.only is None and not self.never


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition."""

    name: str
    default: bool = False
    up: bool = True
    """Whether it takes new jobs and starts them."""
    drains: bool = False
    """Whether it takes no new jobs, but starts those that wait (State=DRAIN)."""
    whole_nodes: bool = False
    time_limit: int | None = None
    """Seconds of a job that names no limit (DefaultTime, else MaxTime)."""
    memory: Memory = Memory()
    counts_cpus_by_gpu: bool = False
    """Whether it has a DefCpuPerGPU, which Slurm cannot apply to GPUs of several types."""
    max_cpus: int | None = None
    """CPUs that its jobs may use of a node (MaxCPUsPerNode); None: all."""
    max_time: int | None = None
    """Seconds that its jobs may ask for; None: any."""
    min_nodes: int = 0
    max_nodes: int | None = None
    tier: int = 1
    """Slurm looks at jobs of a higher PriorityTier first, whatever their priority."""
    for_all_groups: bool = True
    """Whether it has no AllowGroups; who is in these, slurmctld says of each job."""
    accounts: Rule = Rule()
    qos: Rule = Rule()

    @property
    def starts(self) -> bool:
        """Whether jobs that wait in it are started."""
        return self.up or self.drains

    def admits(self, limit: int | None, nodes: int | None) -> bool:
        """Whether its limits let a job in; None for what is not known of the job."""
        if limit is not None and self.max_time is not None and limit > self.max_time:
            return False
        return nodes is None or (nodes >= self.min_nodes and (self.max_nodes is None or nodes <= self.max_nodes))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node. GPU positions are bits: bit K is the GPU of GRES type gK."""

    name: str
    cpus: int
    cpus_used: int
    mem: int
    """MB that Slurm hands out: without what it keeps for the system."""
    mem_used: int
    threads: int
    up: bool
    completing: bool
    gpus: int
    """GPUs that have a GRES type of their own."""
    loose: int
    """GPUs that Slurm knows under another type or none, so that they cannot be pinned."""
    seats: int
    gpus_used: int
    """GPUs that a gpu or shard job holds."""
    seats_used: int
    features: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    shards: int = 0
    """GPUs whose parts Slurm can count, in percent (GRES shard, 100 of each)."""
    shared: tuple[int, ...] = ()
    """Percent of each GPU that packed jobs hold, by position; empty where none does."""
    dynamic: bool = False
    """Whether Slurm can forget it while it runs."""
    weight: int = 1
    """Slurm takes nodes of less weight first."""
    cpus_kept: int = 0
    """CPUs for each GPU that only jobs with GPUs get (RestrictedCoresPerGPU)."""


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
    """A job that runs, or that waits with a pin of ours."""

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
    excluded: tuple[str, ...] = ()
    features: str = ""
    reason: str = "None"
    gpus: int | None = None
    """The GPUs pinned on each of its nodes; None where the request is untyped."""
    share: int = 0
    """Percent of each of its GPUs, for a packed job; 0 for whole GPUs."""
    guest: bool = False
    """Whether it asks for a seat on its GPU and for no GPU."""
    segment: Mapping[str, str] | None = None
    user: int = 0
    count: int = 1
    """Nodes that it asks for at least, or holds."""
    mem: int | None = None
    """MB that it asks for on each node, or holds there; None where a gateway cannot tell."""
    holds: tuple[int, ...] = ()
    """The GPUs that it holds on each of `nodes`, typed or not; empty where a gateway cannot tell."""
    wants_gpus: bool = True
    """Whether it asks for GPUs in any form; CPU-only jobs are planned for, never pinned."""
    array: int = 0
    """The array that it is a task of; 0 for none."""
    task: int | None = None
    tasks: str = ""
    """Of an array's record, the tasks that have not split off, such as `3-7,9`; they share `id` until then."""
    at_once: int | None = None
    """How many tasks of the array may run at once (`%`)."""
    het: int = 0
    """The leader of the heterogeneous job that it is a part of; 0 for none."""
    reservation: str = ""
    licenses: str = ""
    account: str = ""
    name: str = ""
    """As its user named it; free text."""
    begin: int | None = None
    """Not to be started before, for a job that waits."""

    @property
    def rides(self) -> bool:
        """Whether it is a guest on a GPU that others are given as well: not one that was given the GPU for good."""
        return self.guest and "owns" not in (self.segment or {})

    @property
    def may_start(self) -> bool:
        """Whether only room keeps it waiting, as far as Slurm's reason tells."""
        return self.reason.startswith(_WAITS_FOR_ROOM)

    def may_start_at(self, at: float) -> bool:
        """The same at a moment: Slurm may still name a begin time that has passed, and names none after an update."""
        if self.begin is not None and self.begin > at:
            return False
        return self.may_start or (self.reason.startswith("BeginTime") and self.begin is not None)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes that are set aside for a time."""

    start: int
    end: int
    nodes: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that one look at Slurm gave. A record that did not change since the last look is the same object as then."""

    at: float
    nodes: tuple[NodeFacts, ...]
    jobs: tuple[JobFacts, ...]
    partitions: tuple[PartitionFacts, ...]
    reservations: tuple[Reservation, ...] = ()
    seen: frozenset[str] = frozenset()
    """Nonces found in the queue, of ended jobs too."""
    refused: frozenset[str] = frozenset()
    """Those of jobs that Slurm refused at their submission for what they ask for: it keeps a record of each."""
    memory: Memory = Memory()
    memory_counts: bool = True
    """Whether Slurm hands out memory at all (CR_*_Memory)."""
    in_all_partitions: bool = False
    """Whether Slurm takes a job for several partitions only if it can run in each of them (EnforcePartLimits=ALL)."""
    counted: frozenset[str] = frozenset()
    """GPU models that the site counts for limits and bills."""
    cpus_by_gpu: bool = False
    """Whether jobs have a DefCpuPerGPU (JobDefaults), which Slurm cannot apply to GPUs of several types."""
    one_task_per_core: bool = False
    """Whether Slurm gives each task a core of its own (CR_ONE_TASK_PER_CORE)."""
    version: str = ""
    in_control: bool = True
    """Whether the slurmctld of this host is the one in control."""
    federated: bool = False
    """Whether the cluster is in a federation, whose jobs other clusters may start: Berth leaves them alone."""
    problems: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class JobText:
    """What one job's record says of Berth, exact to the byte."""

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
