"""The text that Slurm's commands print (24.11 to 26.05), as facts.

Only texts without free user text are read as structure: node records up to their free text, formatted queue lines of
fields that slurmctld has checked, partition, reservation and configuration records. What users may write freely
(names, comments, paths) is read through JSON alone, in `policy.slurm.records`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from policy import hostlist
from policy.errors import SlurmError
from policy.facts import JobFacts, Memory, NodeFacts, PartitionFacts, Reservation

_NODE = re.compile(
    r"NodeName=(?P<name>\S+) .*?CoresPerSocket=\S+\s+CPUAlloc=(?P<used>\d+) CPUEfctv=(?P<cpus>\d+) .*?"
    r"ActiveFeatures=(?P<features>\S*) .*?Gres=(?P<gres>\S*) (?:GresDrain=\S* )?GresUsed=(?P<gres_used>\S*) .*?"
    r"RealMemory=(?P<mem>\d+) AllocMem=(?P<mem_used>\d+) .*?State=(?P<state>\S+) ThreadsPerCore=(?P<threads>\d+) .*?"
    r"MCS_label=\S* (?:Partitions=(?P<partitions>\S*))?"
)
_NODE_WITHOUT_GRES = re.compile(
    r"NodeName=(?P<name>\S+) .*?CPUAlloc=(?P<used>\d+) CPUEfctv=(?P<cpus>\d+) .*?"
    r"ActiveFeatures=(?P<features>\S*) .*?"
    r"RealMemory=(?P<mem>\d+) AllocMem=(?P<mem_used>\d+) .*?State=(?P<state>\S+) ThreadsPerCore=(?P<threads>\d+) .*?"
    r"MCS_label=\S* (?:Partitions=(?P<partitions>\S*))?"
)
_TYPED_GPU = re.compile(r"(?:^|,)gpu:g(\d+):1(?:\(S:[^)]*\))?(?=,|$)")
_ANY_GPU = re.compile(r"(?:^|,)gpu(?::[^:,()]+)??:(\d+)")
_TYPED_SEAT = re.compile(r"(?:^|,)seat:g\d+:1")
_USED = re.compile(r"(gpu|shard|seat):g(\d+):([1-9]\d*)")
_PINNED = re.compile(r"gres/(?:gpu|shard|seat):g(\d+)(?::\d+)?")

# A node that is powered down is open: Slurm powers it up for a job that is pinned there.
_CLOSED = frozenset(
    {
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "INVALID_REG"),
        *("NOT_RESPONDING", "BLOCKED", "MAINTENANCE", "MAINT", "RESERVED"),
        *("POWER_DOWN", "POWERING_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
    }
)

_QUEUE_FIELDS = (
    *("JobID", "JobArrayID", "State", "Partition", "PriorityLong", "SubmitTime", "StartTime", "EndTime", "TimeLimit"),
    *("NumCPUs", "NodeList", "ReqNodes", "tres-per-node", "tres-per-job", "ExcNodes", "Reason", "Feature"),
)
QUEUE_FORMAT = ",".join(f"{field}:|" for field in _QUEUE_FIELDS)
"""For squeue -O: each field at its full length and ended by |. The constraint is last, because it may hold a |."""

JOB_STATES = "PENDING,RUNNING,SUSPENDED,CONFIGURING,COMPLETING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"


def nodes(text: str) -> list[NodeFacts]:
    """Read `scontrol show node -o -d`."""
    return [_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def _node(line: str) -> NodeFacts:
    match = (_NODE if " Gres=" in line else _NODE_WITHOUT_GRES).match(line) or _NODE_WITHOUT_GRES.match(line)
    if match is None:
        raise SlurmError(f"scontrol show node printed a line that Berth cannot read: {line[:80]!r}")
    found = match.groupdict()
    typed, loose, seats = _gres(found.get("gres") or "")
    gpus_used, seats_used = _gres_used(found.get("gres_used") or "")
    return NodeFacts(
        name=found["name"],
        cpus=int(found["cpus"]),
        cpus_used=int(found["used"]),
        mem=int(found["mem"]),
        mem_used=int(found["mem_used"]),
        threads=int(found["threads"]),
        up=_takes_jobs(found["state"]),
        completing="COMPLETING" in found["state"],
        gpus=typed,
        loose=loose,
        seats=seats,
        gpus_used=gpus_used,
        seats_used=seats_used,
        features=_names(found["features"]),
        partitions=_names(found["partitions"]),
    )


# A cluster has thousands of nodes and few different texts for each of these.
@lru_cache(maxsize=4_096)
def _gres(text: str) -> tuple[int, int, int]:
    typed = len(_TYPED_GPU.findall(text))
    return typed, sum(map(int, _ANY_GPU.findall(text))) - typed, len(_TYPED_SEAT.findall(text))


@lru_cache(maxsize=16_384)
def _gres_used(text: str) -> tuple[int, int]:
    gpus = seats = 0
    for name, place, _count in _USED.findall(text):
        if name == "seat":
            seats |= 1 << int(place)
        else:
            gpus |= 1 << int(place)
    return gpus, seats


@lru_cache(maxsize=1_024)
def _takes_jobs(state: str) -> bool:
    # A * marks a node that does not answer.
    return "*" not in state and not _CLOSED & set(re.findall(r"[A-Z_]+", state))


@lru_cache(maxsize=4_096)
def _names(text: str | None) -> frozenset[str]:
    return frozenset() if text in {None, "", "(null)"} else frozenset(str(text).split(","))


@lru_cache(maxsize=16_384)
def _pinned(tres: str) -> int | None:
    gpus = 0
    for place in _PINNED.findall(tres):
        gpus |= 1 << int(place)
    return gpus or None


def jobs(text: str) -> Iterator[tuple[JobFacts, str]]:
    """Read `squeue -O QUEUE_FORMAT`; with each job comes the text of its pin, which tells when it changed."""
    for line in text.splitlines():
        part = line.split("|", len(_QUEUE_FIELDS) - 1)
        if len(part) != len(_QUEUE_FIELDS) or not part[-1].endswith("|"):
            raise SlurmError(f"squeue printed a line that Berth cannot read: {line[:80]!r}")
        per_node, per_job, features = part[12], part[13], part[16][:-1]
        yield (
            JobFacts(
                id=int(part[0]),
                # The record of array tasks that have not split off stands for many jobs, none of them placed.
                state="ARRAY" if "[" in part[1] else part[2],
                partition=part[3],
                priority=int(part[4]),
                submitted=_moment(part[5]) or 0,
                start=_moment(part[6]),
                end=_moment(part[7]),
                limit=limit(part[8]),
                cpus=int(part[9]),
                nodes=hostlist.expand(part[10]),
                required=hostlist.expand(part[11]),
                excluded=hostlist.expand(part[14]),
                reason=part[15],
                features="" if features == "(null)" else features,
                # A job with a script is pinned by node, one without by job: srun would trip over the former.
                gpus=_pinned(per_node) or _pinned(per_job),
            ),
            f"{part[5]} {part[11]} {per_node} {per_job}",
        )


def records(text: str, first: str) -> Iterator[dict[str, str]]:
    """One-line records of words `Key=value`, as partitions and reservations have."""
    for line in text.splitlines():
        if line.startswith(f"{first}="):
            yield dict(word.split("=", 1) for word in line.split() if "=" in word)


def partitions(text: str) -> tuple[PartitionFacts, ...]:
    """Read `scontrol show partition -o`."""
    return tuple(
        PartitionFacts(
            name=one["PartitionName"],
            default=one.get("Default") == "YES",
            up=one.get("State", "UP") == "UP",
            whole_nodes="EXCLUSIVE" in one.get("OverSubscribe", "") or one.get("Exclusive", "") == "NODE",
            time_limit=limit(one.get("DefaultTime", "NONE")) or limit(one.get("MaxTime", "UNLIMITED")),
            counts_cpus_by_gpu="DefCpuPerGPU" in one.get("JobDefaults", ""),
            memory=memory(one, dict(re.findall(r"(\w+)=(\d+)", one.get("JobDefaults", "")))),
        )
        for one in records(text, "PartitionName")
    )


def memory(one: Mapping[str, str], defaults: Mapping[str, str]) -> Memory:
    """Default memory, as partitions and the configuration write it."""
    per_gpu = defaults.get("DefMemPerGPU")
    if per_gpu is not None:
        return Memory(per_gpu=int(per_gpu))
    if one.get("DefMemPerCPU", "").isdigit():
        return Memory(per_cpu=int(one["DefMemPerCPU"]))
    if one.get("DefMemPerNode", "").isdigit():
        return Memory(per_node=int(one["DefMemPerNode"]))
    return Memory()


def reservations(text: str) -> tuple[Reservation, ...]:
    """Read `scontrol show reservation -o`."""
    return tuple(
        Reservation(_moment(one["StartTime"]) or 0, _moment(one["EndTime"]) or 1 << 62, hostlist.expand(one["Nodes"]))
        for one in records(text, "ReservationName")
        if one.get("Nodes", "(null)") != "(null)"
    )


def config(text: str) -> dict[str, str]:
    """Read `scontrol show config`."""
    found = (re.match(r"(\w+)\s+=\s?(.*)", line) for line in text.splitlines())
    return {match.group(1): match.group(2).strip() for match in found if match}


def limit(text: str) -> int | None:
    """Seconds of a time limit as Slurm prints it; None where there is none."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def _moment(text: str) -> int | None:
    return int(text) if text.isdigit() else None
