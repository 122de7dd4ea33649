# SPDX-License-Identifier: Apache-2.0
"""Readers of single fields of Slurm's records, for every gateway."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from policy.formats.hostlist import fold_numbers
from policy.formats.plan_fields import ID
from policy.formats.slurm_facts import AdmissionRule, JobFacts, NodeFacts

_TYPED_GPU = re.compile(r"(?:^|,)gpu:g(\d+):1(?:\(S:[^)]*\))?(?=,|$)")
_ANY_GPU = re.compile(r"(?:^|,)gpu(?::[^:,()]+)??:(\d+)")
_MODEL = re.compile(r"(?:^|,)gpu:([^:,()]+):\d+")
_TYPED_SEAT = re.compile(r"(?:^|,)seat:g\d+:1")
_PERCENTS = re.compile(r"(?:^|,)shard:g\d+:100(?=[(,]|$)")
_USED = re.compile(r"(gpu|shard|seat):g(\d+):([1-9]\d*)")
_PINNED = re.compile(r"gres/(?:gpu|shard|seat):g(\d{1,2})(?!\d)")
_SHARE = re.compile(r"gres/shard:g\d+:(\d+)")
_SEAT = re.compile(r"gres/seat:g\d")
_GPU_REQUEST = re.compile(r"gres[:/](?:gpu|shard|seat)\b")
"""Slurm finds `gres` anywhere in an element of a request, so Berth does too."""
_NAMED = re.compile(r"gres[:/]gpu:([^:,=()]+)")
_HELD = re.compile(r"(gpu|shard):(?:([^:,()]+|\(null\)):)?[1-9]\d*\((?:IDX:)?([\d,-]*)")
"""Slurm 24.11 writes `(null)` for no type in the sums of a node."""
_OWN_TYPE = re.compile(r"g(\d+)")
_MEM = re.compile(r"(?:^|,)mem=(\d+(?:\.\d+)?)([KMGTP]?)")
_MB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}

# A powered-down node is open: Slurm powers it up for a job that is pinned there. A node that is to reboot is open too
# until it is idle, unless it drains (`scontrol reboot ASAP`). A node that is RESERVED or in MAINTENANCE may be so in
# part: the reservation says which part.
_CLOSED = frozenset(
    {
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "INVALID_REG"),
        *("NOT_RESPONDING", "BLOCKED", "POWER_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"),
    }
)

_LOST = frozenset({"DOWN", "NOT_RESPONDING", "POWERING_DOWN", "POWERED_DOWN"})

PUT_BACK = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""Marks of jobs that were requeued on hold, or lost their reservation; Slurm shows them in place of PENDING, and the
first one even after the job is released, until it starts."""

EXPEDITING = "EXPEDITING"
"""Slurm 25.11 and later show it in place of PENDING for a job that `--requeue=expedite` requeues at the front."""


def refused(jobs: Iterable[JobFacts]) -> frozenset[str]:
    """Returns the nonces of jobs that Slurm refused at their submission, since they could never run."""
    return frozenset(
        job.known[ID] for job in jobs if job.state == "FAILED" and job.reason == "BadConstraints" and ID in job.known
    )


class Gres(NamedTuple):
    """The numbers of a node's GPUs with a type each, its other GPUs, its seats, and its GPUs that count in percent."""

    gpus: int
    loose: int
    seats: int
    shards: int
    models: frozenset[str] = frozenset()
    """GRES types that are not those of one GPU each."""


class UsedGres(NamedTuple):
    """Masks of the GPUs and of the seats that jobs hold, and the percent of each GPU that packed jobs hold."""

    gpus: int
    seats: int
    shared: tuple[int, ...] = ()


# A cluster has thousands of nodes and few different texts.
@lru_cache(maxsize=4_096)
def gres(text: str) -> Gres:
    """Returns the GRES of a node.

    >>> gres("gpu:g0:1(S:0),gpu:g1:1(S:1),shard:g0:100(S:0),shard:g1:100,seat:g0:1,seat:g1:1")
    Gres(gpus=2, loose=0, seats=2, shards=2, models=frozenset())
    >>> gres("gpu:a100:4(S:0),gpu:a100:4(S:1),gpu:2").models
    frozenset({'a100'})
    """
    typed = len(_TYPED_GPU.findall(text))
    loose = sum(map(int, _ANY_GPU.findall(text))) - typed
    models = frozenset(name for name in _MODEL.findall(text) if not _OWN_TYPE.fullmatch(name))
    return Gres(typed, loose, len(_TYPED_SEAT.findall(text)), len(_PERCENTS.findall(text)), models)


@lru_cache(maxsize=16_384)
def gres_used(text: str) -> UsedGres:
    """Returns the GRES in use on a node, or held there by a job.

    >>> gres_used("gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),shard:g2:30(30/100),seat:g0:1(IDX:0)")
    UsedGres(gpus=5, seats=1, shared=(0, 0, 30))
    >>> gres_used("gpu:(null):3(IDX:0,2-3)").gpus, gres_used("gpu:h100:2(IDX:0-1)").gpus
    (13, 3)
    """
    gpus, seats = held(text), 0
    shared: list[int] = []
    for name, place, count in _USED.findall(text):
        bit = 1 << int(place)
        if name == "seat":
            seats |= bit
            continue
        gpus |= bit
        if name == "shard":
            shared += [0] * (int(place) + 1 - len(shared))
            shared[int(place)] += int(count)
    return UsedGres(gpus, seats, tuple(shared))


@lru_cache(maxsize=1_024)
def takes_jobs(state: str) -> bool:
    """Tells whether a node in this state, as scontrol writes it, may start jobs; a * means that it does not answer."""
    return "*" not in state and not _CLOSED & set(re.findall(r"[A-Z_]+", state))


@lru_cache(maxsize=1_024)
def is_lost(state: str) -> bool:
    """Tells whether a node in this state runs no more jobs, as far as Slurm knows.

    >>> is_lost("DOWN+DRAIN"), is_lost("IDLE*+DRAIN"), is_lost("ALLOCATED+DRAIN"), is_lost("IDLE+POWERED_DOWN")
    (True, True, False, True)
    """
    return "*" in state or bool(_LOST & set(re.findall(r"[A-Z_]+", state)))


def is_dynamic(state: str) -> bool:
    """Tells whether Slurm can forget a node in this state while it runs (`scontrol delete`)."""
    return "DYNAMIC" in state


def node_facts(state: str, has: Gres, used: UsedGres, **own: Any) -> NodeFacts:
    """Returns a node's facts from its state, as scontrol writes it, its GRES, and fields that each gateway reads."""
    return NodeFacts(
        up=takes_jobs(state),
        lost=is_lost(state),
        completing="COMPLETING" in state,
        dynamic=is_dynamic(state),
        gpus=has.gpus,
        loose=has.loose,
        models=has.models,
        seats=has.seats,
        gpus_used=used.gpus,
        seats_used=used.seats,
        shards=has.shards,
        shared=used.shared,
        **own,
    )


@lru_cache(maxsize=4_096)
def names(text: str) -> frozenset[str]:
    """Returns the names in a comma-separated list."""
    return frozenset(filter(None, text.split(",")))


def job_state(text: str) -> str:
    """Returns a job's state; marks that only mean that it waits become PENDING: a hold is seen by the reason.

    >>> job_state("REQUEUE_HOLD"), job_state("EXPEDITING"), job_state("REQUEUED"), job_state("RUNNING")
    ('PENDING', 'PENDING', 'REQUEUED', 'RUNNING')
    """
    return "PENDING" if text in PUT_BACK or text == EXPEDITING else text


@lru_cache(maxsize=16_384)
def pinned(tres: str) -> int | None:
    """Returns a mask of the GPUs that a request names one by one; None if it names none.

    >>> pinned("gres/gpu:g0:1,gres/gpu:g2:1,gres/seat:g0:1,gres/seat:g2:1")
    5
    """
    gpus = 0
    for place in _PINNED.findall(tres):
        gpus |= 1 << int(place)
    return gpus or None


@lru_cache(maxsize=16_384)
def share(per_node: str) -> int:
    """Returns the percent of each GPU that a request by node asks for; 0 if it asks for whole GPUs.

    >>> share("gres/shard:g0:30,gres/shard:g1:30"), share("gres/gpu:g2:1,gres/seat:g2:1")
    (30, 0)
    """
    match = _SHARE.search(per_node)
    return int(match.group(1)) if match else 0


@lru_cache(maxsize=16_384)
def guest(per_node: str) -> bool:
    """Tells whether a request by node is for seats alone, as a guest's is.

    >>> guest("gres/seat:g3:1"), guest("gres/gpu:g2:1,gres/seat:g2:1"), guest("gres/gpu:1"), guest("")
    (True, False, False, False)
    >>> guest("xgres/seat:g3:1"), share("xgres/shard:g3:5")
    (True, 5)
    """
    return bool(_SEAT.search(per_node)) and "gres/gpu" not in per_node and "gres/shard" not in per_node


@lru_cache(maxsize=16_384)
def typed_gpus(tres: str) -> int:
    """Returns a mask of the GPUs that a job with this request holds on each of its nodes, as far as it names them.

    >>> typed_gpus("gres/gpu:g0:1,gres/shard:g2:30,gres/seat:g1:1"), typed_gpus("gres/gpu:2")
    (5, 0)
    """
    return pinned(",".join(part for part in tres.split(",") if not part.startswith("gres/seat:"))) or 0


def wants_gpus(requests: Iterable[str]) -> bool:
    """Tells whether one of a job's requests asks for GPUs, parts of them or seats on them."""
    return any(request and _GPU_REQUEST.search(request) for request in requests)


def models(requests: Iterable[str]) -> frozenset[str]:
    """Returns the GPU models that a job's requests name; types of one GPU each do not count.

    >>> sorted(models(["gres/gpu:h100:2,gres/gpu:1g.5gb:1", "gres/gpu:g0:1,gres/gpu:4", ""]))
    ['1g.5gb', 'h100']
    """
    found = {name for request in requests for name in _NAMED.findall(request)}
    return frozenset(name for name in found if not (name.isdigit() or _OWN_TYPE.fullmatch(name)))


@lru_cache(maxsize=4_096)
def mem(tres: str, count: int) -> int | None:
    """Returns the MB on each of `count` nodes from a job's whole TRES; None if they name no memory.

    >>> mem("cpu=8,mem=62.50G,node=2,billing=8", 2)
    32000
    """
    match = _MEM.search(tres)
    return round(float(match.group(1)) * _MB[match.group(2)] / max(1, count)) if match else None


def mem_for_jobs(real: int, kept: int) -> int:
    """Returns the MB of a node for jobs: its RealMemory without the system's MemSpecLimit.

    If Slurm does not allocate memory, it compares requests with RealMemory; a job with more than this is left to it.

    >>> mem_for_jobs(64_000, 4_000), mem_for_jobs(4_000, 64_000)
    (60000, 0)
    """
    return max(0, real - kept)


@lru_cache(maxsize=16_384)
def held(detail: str) -> int:
    """Returns a mask of the GPUs that a job holds on a node, from Slurm's detail of its GRES there.

    >>> held("gpu:g0:1(IDX:0),gpu:g1:0(IDX:),gpu:g2:1(IDX:2),seat:g0:1(IDX:0)"), held("gpu:h100:3(IDX:0,2-3)")
    (5, 13)
    """
    gpus = 0
    for kind, gpu_type, indices in _HELD.findall(detail):
        if own := _OWN_TYPE.fullmatch(gpu_type):
            gpus |= 1 << int(own.group(1))
        elif kind == "gpu":
            for place in numbers(indices):
                gpus |= 1 << place
    return gpus


@lru_cache(maxsize=4_096)
def tasks(text: str) -> tuple[str, int | None]:
    """Returns the tasks in an array's record, and the number of them that may run at once.

    >>> tasks("1-3,5-6%2"), tasks("0-12:4"), tasks("")
    (('1-3,5,6', 2), ('0,4,8,12', None), ('', None))
    """
    listed, _, at_once = text.partition("%")
    return fold_numbers(tuple(numbers(listed))), int(at_once) if at_once else None


def numbers(text: str) -> Iterator[int]:
    """Yields the numbers in a list such as `1-3,7,0-44:4`."""
    for part in filter(None, text.split(",")):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def rule(only: Iterable[str], never: Iterable[str]) -> AdmissionRule:
    """Returns the rule of a partition's Allow and Deny lines; ALL means that there is no such line.

    >>> rule(["ALL"], []).admits_all, sorted(rule(["Physics", "chemistry"], ["ALL"]).only)
    (True, ['chemistry', 'physics'])
    """
    allowed, denied = (frozenset(name.lower() for name in names) - {"all"} for names in (only, never))
    return AdmissionRule(allowed or None, denied)
