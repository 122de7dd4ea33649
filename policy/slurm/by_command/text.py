# SPDX-License-Identifier: Apache-2.0
"""Reads the text that Slurm's commands print (24.11 to 26.05).

Free text must not pose as structure. In records of nodes, partitions, reservations and configuration only the part
before their free text is read; the queue's fields end with a mark of this reading, which no user can have put into a
job. Users' comments and paths are not asked for.
"""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from policy.formats import hostlist
from policy.formats.errors import UnreadableError
from policy.formats.job_plan import readable
from policy.formats.slurm_facts import AdmissionRule, JobFacts, Memory, NodeFacts, PartitionFacts, Reservation
from policy.formats.slurm_syntax import excluded_nodes as others
from policy.request import counted
from policy.slurm import fields
from policy.slurm.unreadable import RECORD_FAULTS, why_unreadable

_NODE = re.compile(
    r"NodeName=(?P<name>\S+) .*?CoresPerSocket=\S+\s+CPUAlloc=(?P<used>\d+) CPUEfctv=(?P<cpus>\d+) .*?"
    r"ActiveFeatures=(?P<features>\S*) .*?Gres=(?P<gres>\S*) (?:GresDrain=\S* )?GresUsed=(?P<gres_used>\S*) .*?"
    r"RealMemory=(?P<mem>\d+) AllocMem=(?P<mem_used>\d+) (?P<special>.*?)State=(?P<state>\S+) "
    r"ThreadsPerCore=(?P<threads>\d+) .*?Weight=(?P<weight>\d+) .*?MCS_label=\S* (?:Partitions=(?P<partitions>\S*))?"
)
_NODE_WITHOUT_GRES = re.compile(
    r"NodeName=(?P<name>\S+) .*?CPUAlloc=(?P<used>\d+) CPUEfctv=(?P<cpus>\d+) .*?"
    r"ActiveFeatures=(?P<features>\S*) .*?"
    r"RealMemory=(?P<mem>\d+) AllocMem=(?P<mem_used>\d+) (?P<special>.*?)State=(?P<state>\S+) "
    r"ThreadsPerCore=(?P<threads>\d+) .*?Weight=(?P<weight>\d+) .*?MCS_label=\S* (?:Partitions=(?P<partitions>\S*))?"
)
_FOR_SYSTEM = re.compile(r"MemSpecLimit=(\d+)")
_FOR_GPUS = re.compile(r"RestrictedCoresPerGPU=(\d+)")
_QUEUE_FIELDS = (
    *("JobID", "State", "UserID", "Partition", "PriorityLong", "SubmitTime", "StartTime", "EndTime", "EligibleTime"),
    *("TimeLimit", "NumCPUs", "NumNodes", "NodeList", "ReqNodes", "ExcNodes", "Feature", "Reason", "tres-per-job"),
    *("tres-per-node", "tres-per-socket", "tres-per-task", "tres-alloc", "JobArrayID", "HetJobID"),
    *("Reservation", "Licenses", "Account", "Name", "admin_comment"),
)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A job in the queue, and the texts by which a changed pin is noticed."""

    job: JobFacts
    tres_per_node: str
    tres_per_job: str
    admin_comment: str


HOLDING_STATES = "RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"
"""For squeue -t: the states of jobs that hold GPUs."""

_NOTHING = frozenset({"(null)", "N/A"})


def new_mark() -> str:
    """Returns a random mark, which no text in the queue can contain."""
    return f"|{secrets.token_hex(4)}"


def squeue_format(fields: Iterable[str], mark: str) -> str:
    """Returns a format for squeue -O: each field in its full length, followed by the mark."""
    return ",".join(f"{field}:{mark}" for field in fields)


def squeue_records(printed: str, mark: str, count: int) -> list[tuple[str, ...]]:
    r"""Splits squeue's output in the squeue_format of this mark into records of `count` fields.

    >>> squeue_records("7|~no newline|~\n8|~\na newline|~\n", "|~", 2)
    [('7', 'no newline'), ('8', '\na newline')]
    """
    # Puts a newline before each record, instead of after it.
    *values, rest = f"\n{printed}".split(mark)
    records = [tuple(values[place : place + count]) for place in range(0, len(values), count)]
    wrong = [record for record in records if len(record) != count or not record[0].startswith("\n")]
    if wrong or rest != "\n":
        line = "|".join(wrong[0]) if wrong else rest
        raise UnreadableError(f"squeue printed a line that Berth cannot read: {line.lstrip()[:80]!r}")
    return [(first[1:], *others) for first, *others in records]


def queue_format(mark: str) -> str:
    """Returns the format of the queue for squeue -O."""
    return squeue_format(_QUEUE_FIELDS, mark)


def nodes(text: str) -> list[NodeFacts]:
    """Reads the output of `scontrol show node -o -d`."""
    return [_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def _node(line: str) -> NodeFacts:
    match = (_NODE if " Gres=" in line else _NODE_WITHOUT_GRES).match(line) or _NODE_WITHOUT_GRES.match(line)
    if match is None:
        raise UnreadableError(f"scontrol show node printed a line that Berth cannot read: {line[:80]!r}")
    found = match.groupdict()
    has = fields.gres(found.get("gres") or "")
    used = fields.gres_used(found.get("gres_used") or "")
    kept, for_gpus = (pattern.search(found["special"]) for pattern in (_FOR_SYSTEM, _FOR_GPUS))
    return fields.node_facts(
        found["state"],
        has,
        used,
        name=found["name"],
        cpus=int(found["cpus"]),
        cpus_used=int(found["used"]),
        mem=fields.mem_for_jobs(int(found["mem"]), int(kept[1]) if kept else 0),
        mem_used=int(found["mem_used"]),
        threads=int(found["threads"]),
        weight=int(found["weight"]),
        cpus_kept=int(for_gpus[1]) * int(found["threads"]) if for_gpus else 0,
        features=_names(found["features"]),
        partitions=_names(found["partitions"]),
    )


def _names(text: str | None) -> frozenset[str]:
    return fields.names(_value(text or ""))


def _value(text: str) -> str:
    return "" if text in _NOTHING else text


def waiting_states(version: str) -> str:
    """Returns the states of waiting jobs for squeue -t, which does not count marked jobs as PENDING.

    An older squeue refuses a state that it does not know.

    >>> waiting_states("24.11.5"), waiting_states("26.05.0")
    ('PENDING,REQUEUE_HOLD,SPECIAL_EXIT,RESV_DEL_HOLD', 'PENDING,REQUEUE_HOLD,SPECIAL_EXIT,RESV_DEL_HOLD,EXPEDITING')
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    return ",".join(("PENDING", *fields.PUT_BACK, *((fields.EXPEDITING,) if numbers >= (25, 11) else ())))


def jobs(text: str, mark: str, unreadable: dict[int, str]) -> list[QueueLine]:
    """Reads the output of `squeue -r -O` in the queue_format of this mark, a line per task.

    Jobs with an unreadable line are left out, and go into `unreadable` with the reason.
    """
    lines: list[QueueLine] = []
    for record in squeue_records(text, mark, len(_QUEUE_FIELDS)):
        try:
            lines.append(_job(record))
        except RECORD_FAULTS as fault:
            # Without a number the record belongs to no job.
            if not record[0].isdecimal():
                raise
            unreadable[int(record[0])] = why_unreadable(fault)
    return [line for line in lines if line.job.id not in unreadable]


@lru_cache(maxsize=16_384)
def _job(values: tuple[str, ...]) -> QueueLine:
    found = dict(zip(_QUEUE_FIELDS, map(_value, values), strict=True))
    job_id, count, submitted = int(found["JobID"]), int(found["NumNodes"]), _moment(found["SubmitTime"]) or 0
    array, _, task = found["JobArrayID"].partition("_")
    eligible = _moment(found["EligibleTime"]) or 0
    state = fields.job_state(found["State"])
    waits = state == "PENDING" and not found["NodeList"]
    requests = [found[f"tres-per-{part}"] for part in ("node", "job", "socket", "task")]
    plan = readable(found["admin_comment"])
    return QueueLine(
        JobFacts(
            id=job_id,
            state=state,
            expedited=found["State"] == fields.EXPEDITING,
            partition=found["Partition"],
            priority=int(found["PriorityLong"]),
            submitted=submitted,
            start=_moment(found["StartTime"]),
            end=_moment(found["EndTime"]),
            limit=limit(found["TimeLimit"]),
            cpus=int(found["NumCPUs"]),
            nodes=hostlist.expand(found["NodeList"]),
            required=others.required_by(found["ReqNodes"], plan),
            excluded=others.of_the_user(found["ExcNodes"], plan),
            closes=others.closes(found["ReqNodes"], found["ExcNodes"], plan),
            reason=found["Reason"],
            features=found["Feature"],
            # A job with a script is pinned by node, one without by job: srun would trip over the former.
            gpus=fields.pinned(requests[0]) or fields.pinned(requests[1]),
            share=fields.share(requests[0]),
            guest=fields.guest(requests[0]),
            plan=plan,
            user=int(found["UserID"]),
            count=count,
            mem=fields.mem(found["tres-alloc"], count),
            wants_gpus=fields.wants_gpus(requests),
            models=fields.models(requests),
            array=int(array) if task else 0,
            task=int(task) if task else None,
            het=int(found["HetJobID"] or 0),
            reservation=found["Reservation"],
            licenses=found["Licenses"],
            account=found["Account"],
            name=found["Name"],
            begin=eligible if waits and eligible > submitted else None,
        ),
        found["tres-per-node"],
        found["tres-per-job"],
        found["admin_comment"],
    )


ARRAY_FORMAT = "JobID:|,JobArrayID:|"
"""For squeue -O without -r: the records of arrays, which `squeue -r` splits into tasks."""


def arrays(text: str) -> dict[int, str]:
    """Returns by record the tasks of an array as squeue prints them, such as `1-7%2`; also for waiting single tasks."""
    try:
        found = [line.split("|") for line in text.splitlines() if "[" in line]
        return {int(job_id): name.partition("[")[2].rstrip("]") for job_id, name, _ in found}
    except ValueError:
        raise UnreadableError(f"squeue printed arrays that Berth cannot read: {text[-80:]!r}") from None


def with_arrays(
    lines: Iterable[QueueLine], records: Mapping[int, str], unreadable: dict[int, str]
) -> dict[int, QueueLine]:
    """Returns the queue by job id; the tasks of an array that have not split off share one id, and become one record.

    The array's own line may be missing: squeue was asked for it a moment later, or its answer is incomplete.
    """
    groups: dict[int, list[QueueLine]] = {}
    split: dict[int, set[int]] = {}
    for line in lines:
        groups.setdefault(line.job.id, []).append(line)
        if line.job.task is not None and line.job.id not in records:
            split.setdefault(line.job.array, set()).add(line.job.task)
    queue: dict[int, QueueLine] = {}
    for job_id, [line, *more] in groups.items():
        try:
            if job_id in records:
                queue[job_id] = _record(line, records[job_id], split.get(line.job.array, set()))
            elif more:
                queue[job_id] = _record(line, ",".join(str(one.job.task) for one in (line, *more)), set())
            else:
                queue[job_id] = line
        except RECORD_FAULTS as fault:
            unreadable[job_id] = why_unreadable(fault)
    return queue


def _record(line: QueueLine, listed: str, split: set[int]) -> QueueLine:
    # `squeue -r` forgets the last task of some steps (0-44:4), so the list comes from here.
    numbers, at_once = fields.tasks(listed)
    tasks = hostlist.fold_numbers(tuple(number for number in fields.numbers(numbers) if number not in split))
    # The record stands for many jobs, none of them placed.
    return replace(line, job=replace(line.job, state="ARRAY", task=None, tasks=tasks, at_once=at_once))


def records(text: str, first: str, line: str = "") -> Iterator[dict[str, str]]:
    """Yields one-line records of words `Key=value`, as of partitions; `line` names a key for the whole line."""
    for record in text.splitlines():
        if record.startswith(f"{first}="):
            # The first word of a key counts: later ones may be an admin's free text.
            yield {**dict(reversed([word.split("=", 1) for word in record.split() if "=" in word])), line: record}


_FOR_ALL = {"AllowGroups": "ALL", "AllocNodes": "ALL", "RootOnly": "NO", "ReqResv": "NO", "Hidden": "NO"}
"""The words of a partition that any user may see and use."""


def partitions(text: str) -> tuple[PartitionFacts, ...]:
    """Reads the output of `scontrol show partition -o`."""
    return tuple(
        PartitionFacts(
            name=one["PartitionName"],
            default=one.get("Default") == "YES",
            up=one.get("State", "UP") == "UP",
            drains=one.get("State") == "DRAIN",
            whole_nodes="EXCLUSIVE" in one.get("OverSubscribe", "") or one.get("Exclusive", "") == "NODE",
            apart="YES" in {one.get("ExclusiveUser"), one.get("ExclusiveTopo")}
            or one.get("Exclusive") in {"USER", "TOPO"},
            time_limit=limit(one.get("DefaultTime", "NONE")) or limit(one.get("MaxTime", "UNLIMITED")),
            counts_cpus_by_gpu="DefCpuPerGPU" in one.get("JobDefaults", ""),
            memory=memory(one, dict(re.findall(r"(\w+)=(\d+)", one.get("JobDefaults", "")))),
            max_cpus=_count(one.get("MaxCPUsPerNode", "UNLIMITED")),
            max_time=limit(one.get("MaxTime", "UNLIMITED")),
            min_nodes=_count(one.get("MinNodes", "0")) or 0,
            max_nodes=_count(one.get("MaxNodes", "UNLIMITED")),
            tier=int(one.get("PriorityTier", "1")),
            for_all_groups=all(one.get(key, word) == word for key, word in _FOR_ALL.items()),
            accounts=_rule(one, "Accounts"),
            qos=_rule(one, "Qos"),
            topology=one.get("Topology", ""),
        )
        for one in records(text, "PartitionName")
    )


def _rule(one: Mapping[str, str], whom: str) -> AdmissionRule:
    allowed, denied = (one.get(verb + whom, "ALL").split(",") for verb in ("Allow", "Deny"))
    return fields.rule(allowed, denied)


def memory(one: Mapping[str, str], defaults: Mapping[str, str]) -> Memory:
    """Returns the default memory of a partition or of the configuration."""
    per_gpu = defaults.get("DefMemPerGPU")
    if per_gpu is not None:
        return Memory(per_gpu=int(per_gpu))
    if one.get("DefMemPerCPU", "").isdigit():
        return Memory(per_cpu=int(one["DefMemPerCPU"]))
    if one.get("DefMemPerNode", "").isdigit():
        return Memory(per_node=int(one["DefMemPerNode"]))
    return Memory()


def of_config(config: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a `Reading` that Slurm's configuration decides, for every gateway."""
    selects, defaults = config.get("SelectTypeParameters", "").upper(), config.get("JobDefaults", "")
    counts = "MEMORY" in selects
    enforced = config.get("AccountingStorageEnforce", "").lower().split(",")
    return {
        "memory": memory(config, dict(re.findall(r"(\w+)=(\d+)", defaults))) if counts else Memory(),
        "memory_counts": counts,
        "in_all_partitions": config.get("EnforcePartLimits", "").upper() == "ALL",
        "cpus_by_gpu": "DefCpuPerGPU" in defaults,
        "one_task_per_core": "ONE_TASK_PER_CORE" in selects,
        "cluster": config.get("ClusterName", ""),
        "limits_enforced": not {"limits", "safe", "all"}.isdisjoint(enforced),
        "counted": counted.models(config.get("Licenses", "")),
        "version": config.get("SLURM_VERSION", ""),
        "wakes": config.get("ResumeProgram", "(null)") not in _NOTHING,
    }


def reservations(text: str) -> tuple[Reservation, ...]:
    """Reads the output of `scontrol show reservation -o`."""
    return tuple(
        Reservation(
            _moment(one["StartTime"]) or 0,
            _moment(one["EndTime"]) or 1 << 62,
            hostlist.expand(one["Nodes"]),
            one["ReservationName"],
            cores=_cores(one["line"]),
            gpus=_reserved_gpus(one.get("TRES", "")),
            flags=frozenset(one.get("Flags", "").split(",")) - {""},
            **{key: _listed(one.get(key.capitalize(), "")) for key in ("users", "accounts", "groups")},
        )
        for one in records(text, "ReservationName", line="line")
        if one.get("Nodes", "(null)") != "(null)"
    )


def _cores(line: str) -> tuple[tuple[str, int], ...]:
    """Returns by node a mask of the cores that a reservation takes; ignores the admin's text after them."""
    found = re.findall(r"NodeName=(\S+) CoreIDs=([0-9,-]+)", line.partition(" TRES=")[0])
    return tuple((node, sum(1 << core for core in fields.numbers(cores))) for node, cores in found)


def _reserved_gpus(tres: str) -> tuple[tuple[str, int], ...]:
    return tuple((kind, int(count)) for kind, count in re.findall(r"gres/gpu:?([^=,]*)=(\d+)", tres))


def _listed(names: str) -> tuple[str, ...]:
    return tuple(names.split(",")) if names not in {"", "(null)"} else ()


def config(text: str) -> dict[str, str]:
    """Reads the output of `scontrol show config`."""
    found = (re.match(r"(\w+(?:\[\d+\])?)\s+=\s?(.*)", line) for line in text.splitlines())
    return {match.group(1): match.group(2).strip() for match in found if match}


def limit(text: str) -> int | None:
    """Returns the seconds of a time limit as Slurm prints it; None if there is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _moment(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None
