"""pyslurm's objects as facts. pyslurm has no types of its own: what comes from it is `Any` here and nowhere else."""

import time
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

from policy.formats import excluded_nodes as others
from policy.formats import hostlist, segment
from policy.formats.job_plan import readable
from policy.formats.slurm_facts import JobFacts, JobText, Memory, NodeFacts, PartitionFacts, Reservation
from policy.slurm import changes, fields
from policy.slurm.fields import Gres, UsedGres


class JobRow(NamedTuple):
    """The fields of a `pyslurm.Job`, by pyslurm's own names: cheap to read and to compare with the last reading."""

    id: int
    state: str
    state_reason: str | None
    user_id: int
    partition: str | None
    priority: int | None
    submit_time: int | None
    eligible_time: int | None
    start_time: int | None
    end_time: int | None
    time_limit: int | None
    cpus: int
    num_nodes: int | None
    memory_per_cpu: int | None
    memory_per_node: int | None
    allocated_nodes: str | None
    required_nodes: str | None
    excluded_nodes: str | None
    constraints: list[str]
    gres_per_node: dict[str, int]
    array_id: int | None
    array_task_id: int | None
    array_tasks_waiting: str | None
    array_tasks_parallel: int | None
    heterogeneous_id: int | None
    federation_origin: str | None
    reservation: str | None
    licenses: list[str]
    admin_comment: str | None
    extra: str | None
    account: str | None
    name: str | None

    @property
    def over(self) -> bool:
        """Tells whether the job is no more in the queue."""
        return self.state in changes.ENDED

    @property
    def task(self) -> int | None:
        """Its number in its array; None for other jobs, and for the record of tasks that have not split off."""
        if self.array_id is None or self.array_tasks_waiting:
            return None
        # pyslurm takes task 0 for none, as it does where an array ended before all of its tasks had split off.
        none = self.over and self.id == self.array_id
        return self.array_task_id or (None if none else 0)

    @property
    def asked_at(self) -> tuple[object, ...]:
        """Returns what changes with the request, as far as pyslurm tells."""
        return self.submit_time, self.required_nodes, self.admin_comment, self.gres_per_node


class Requests(NamedTuple):
    """A job's requests for GRES, as Slurm writes them."""

    per_node: str = ""
    per_job: str = ""
    per_socket: str = ""
    per_task: str = ""


class NodeRow(NamedTuple):
    """The fields of a `pyslurm.Node`, by pyslurm's own names."""

    name: str
    state: str
    effective_cpus: int
    allocated_cpus: int
    real_memory: int | None
    memory_reserved_for_system: int | None
    allocated_memory: int
    threads_per_core: int | None
    weight: int | None
    active_features: list[str]
    partitions: list[str]


_job_values = attrgetter(*JobRow._fields)
_node_values = attrgetter(*NodeRow._fields)


def job_row(job: Any) -> JobRow:
    """Read a `pyslurm.Job`."""
    try:
        return JobRow(*_job_values(job))
    except ValueError:
        return JobRow(*[_value(job, name) for name in JobRow._fields])


def _value(job: Any, name: str) -> Any:
    try:
        return getattr(job, name)
    except UnicodeDecodeError as problem:
        # pyslurm takes every text for UTF-8; its error holds the text as it is.
        return problem.object.decode("utf-8", "surrogateescape")
    except ValueError:
        if name != "gres_per_node":
            raise
        # It takes counts such as 100G, of a site's own GRES, for numbers.
        return {}


def requests_in(row: JobRow) -> Requests:
    """Returns what pyslurm tells of a job's requests: the one for each node, which it takes apart."""
    return Requests(",".join(f"{name}:{count}" for name, count in row.gres_per_node.items()))


def job_facts(job: Any, row: JobRow, requests: Requests, held: Mapping[str, UsedGres]) -> JobFacts:
    """A `pyslurm.Job` as Berth sees it."""
    count = row.num_nodes or 1
    tasks, _ = fields.tasks(row.array_tasks_waiting or "")
    nodes = hostlist.expand(row.allocated_nodes or "")
    submitted, eligible = row.submit_time or 0, row.eligible_time or 0
    state = fields.job_state(row.state)
    waits = state == "PENDING" and not nodes
    wants_gpus = fields.wants_gpus(requests)
    plan = readable(row.admin_comment or "")
    return JobFacts(
        id=row.id,
        # The record of array tasks that have not split off stands for many jobs, none of them placed.
        state="ARRAY" if tasks else state,
        partition=row.partition or "",
        priority=row.priority or 0,
        submitted=submitted,
        start=row.start_time,
        end=_end(row),
        limit=None if row.time_limit is None else row.time_limit * 60,
        cpus=row.cpus,
        nodes=nodes,
        required=others.required_by(row.required_nodes or "", plan),
        excluded=others.of_the_user(row.excluded_nodes or "", plan),
        closes=others.closes(row.required_nodes or "", row.excluded_nodes or "", plan),
        features=",".join(row.constraints),
        reason=row.state_reason or "None",
        # A job with a script is pinned by node, one without by job: srun would trip over the former.
        gpus=fields.pinned(requests.per_node) or fields.pinned(requests.per_job),
        share=fields.share(requests.per_node),
        guest=fields.guest(requests.per_node),
        plan=plan,
        user=row.user_id,
        count=count,
        mem=_mem(job, count),
        holds=tuple(held[name].gpus for name in nodes if name in held) if wants_gpus else (),
        wants_gpus=wants_gpus,
        models=fields.models(requests),
        array=row.array_id or 0,
        task=row.task,
        tasks=tasks,
        at_once=row.array_tasks_parallel,
        het=row.heterogeneous_id or 0,
        reservation=row.reservation or "",
        licenses=",".join(row.licenses),
        account=row.account or "",
        name=row.name or "",
        begin=eligible if waits and eligible > submitted else None,
        own_extra=segment.remove(row.extra or ""),
    )


def _end(row: JobRow) -> int | None:
    # As squeue: a job without a limit has no end before it ended.
    if row.time_limit is None and row.end_time is not None and row.end_time > time.time():
        return None
    return row.end_time


def _mem(job: Any, count: int) -> int | None:
    tres = job.allocated_tres or job.requested_tres
    memory = tres.mem if tres else None
    return round(memory.count / count) if memory else None


def job_text(row: JobRow, requests: Requests) -> JobText:
    """Returns what a change of the job is based on."""
    return JobText(
        id=row.id,
        state=fields.job_state(row.state),
        user_id=row.user_id,
        admin_comment=row.admin_comment or "",
        extra=row.extra or "",
        required=row.required_nodes or "",
        tres_per_node=requests.per_node,
        tres_per_job=requests.per_job,
        excluded=row.excluded_nodes or "",
        licenses=",".join(row.licenses),
        tres_per_task=requests.per_task,
    )


def held_by_node(job: Any) -> dict[str, UsedGres]:
    """Returns what a job that has nodes holds on each of them."""
    layout: Mapping[str, Mapping[str, Any]] = job.get_resource_layout_per_node()
    return {node: _held(part["gres"]) for node, part in layout.items()}


def _held(gres: Mapping[str, int | Mapping[str, Any]]) -> UsedGres:
    """Put together again what pyslurm took apart: `gpu:g1:1(IDX:1),gpu:h100:2(IDX:0-1),shard:g7:30(30/100)`."""
    detail = ",".join(
        f"{name}:{what['count']}(IDX:{what['indexes']})" if isinstance(what, Mapping) else f"{name}:{what}()"
        for name, what in gres.items()
    )
    # Of untyped GPUs only the indices tell which they are.
    return fields.gres_used(detail)._replace(gpus=fields.held(detail))


def node_row(node: Any) -> NodeRow:
    """Read a `pyslurm.Node`."""
    return NodeRow(*_node_values(node))


def node_gres(node: Any) -> Gres:
    """Returns what a node has."""
    return fields.gres(",".join(f"{name}:{count}" for name, count in node.configured_gres.items()))


def node_facts(row: NodeRow, has: Gres, used: UsedGres) -> NodeFacts:
    """A node as Berth sees it."""
    return fields.node_facts(
        row.state,
        has,
        used,
        name=row.name,
        cpus=row.effective_cpus,
        cpus_used=row.allocated_cpus,
        mem=fields.mem_for_jobs(row.real_memory or 0, row.memory_reserved_for_system or 0),
        mem_used=row.allocated_memory,
        threads=row.threads_per_core or 1,
        weight=1 if row.weight is None else row.weight,
        features=frozenset(row.active_features),
        partitions=frozenset(row.partitions),
    )


def used_by_node(held: Iterable[Mapping[str, UsedGres]]) -> dict[str, UsedGres]:
    """Returns what is taken on each node, from what each job holds: pyslurm does not read a node's GresUsed."""
    used: dict[str, UsedGres] = {}
    for nodes in held:
        for name, part in nodes.items():
            used[name] = _together(used[name], part) if name in used else part
    return used


def _together(one: UsedGres, other: UsedGres) -> UsedGres:
    shared = tuple(map(sum, zip_longest(one.shared, other.shared, fillvalue=0)))
    return UsedGres(one.gpus | other.gpus, one.seats | other.seats, shared)


def partition_facts(partition: Any) -> PartitionFacts:
    """A `pyslurm.Partition` as Berth sees it."""
    longest = _number(partition.max_time)
    minutes = _number(partition.default_time) or longest
    return PartitionFacts(
        name=partition.name,
        default=partition.is_default,
        up=partition.state == "UP",
        drains=partition.state == "DRAIN",
        whole_nodes=partition.oversubscribe == "EXCLUSIVE",
        time_limit=minutes * 60 if minutes else None,
        memory=_memory(partition),
        counts_cpus_by_gpu=partition.default_cpus_per_gpu is not None,
        max_cpus=_number(partition.max_cpus_per_node),
        max_time=None if longest is None else longest * 60,
        min_nodes=_number(partition.min_nodes) or 0,
        max_nodes=_number(partition.max_nodes),
        # A tier of 0 comes as none.
        tier=_number(partition.priority_tier) or 0,
        for_all_groups=partition.allowed_groups == ["ALL"],
        # Whom it denies is ALL too where it denies nobody.
        accounts=fields.rule(partition.allowed_accounts, partition.denied_accounts),
        qos=fields.rule(partition.allowed_qos, partition.denied_qos),
    )


def _memory(partition: Any) -> Memory:
    if (per_gpu := _number(partition.default_memory_per_gpu)) is not None:
        return Memory(per_gpu=per_gpu)
    if (per_cpu := _number(partition.default_memory_per_cpu)) is not None:
        return Memory(per_cpu=per_cpu)
    return Memory(per_node=_number(partition.default_memory_per_node))


def _number(value: Any) -> int | None:
    # Where there is no limit pyslurm has a word.
    return value if isinstance(value, int) else None


def reservation_facts(reservation: Any) -> Reservation:
    """A `pyslurm.Reservation` as Berth sees it."""
    nodes = hostlist.expand(reservation.nodes or "")
    start, end = reservation.start_time or 0, reservation.end_time or 1 << 62
    # pyslurm's releases differ in what they tell of a reservation beyond these.
    cores = getattr(reservation, "cpu_ids_by_node", None) or {}
    tres = getattr(reservation, "tres", None) or {}
    whom = {key: _listed(getattr(reservation, key, None)) for key in ("users", "accounts", "groups")}
    return Reservation(
        start, end, nodes, reservation.name,
        cores=tuple((node, sum(1 << core for core in fields.numbers(str(ids)))) for node, ids in cores.items()),
        gpus=tuple(
            (kind.removeprefix("gres/gpu").lstrip(":"), int(count))
            for kind, count in tres.items()
            if kind.startswith("gres/gpu")
        ),
        flags=frozenset(str(flag).upper() for flag in _listed(getattr(reservation, "flags", None))),
        **whom,
    )  # fmt: skip


def _listed(value: Any) -> tuple[str, ...]:
    return tuple(value.split(",")) if isinstance(value, str) and value else tuple(map(str, value or ()))
