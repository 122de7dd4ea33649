# SPDX-License-Identifier: Apache-2.0
"""Writes what is told of a place: the fields of the job's plan, and the line that the job's user reads."""

import re
from collections.abc import Collection, Iterable, Sequence

from policy.formats import hostlist
from policy.formats import plan_fields as fields
from policy.formats.job_plan import NOTHING, JobPlan, Pairs, PlanEntry
from policy.formats.messages import MOST_BYTES, tag, tagged
from policy.placement.base import Berth
from policy.plan.answer.case import Case
from policy.plan.jobs.waiting_jobs import parked_until
from policy.plan.ledger.changes import Move, Park
from policy.request.demand import Demand, binding
from policy.request.locality import Insistence
from policy.request.settings import Settings
from policy.request.share import Share
from policy.request.spread import SPREAD
from policy.request.submission import Request
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC

_NOT_PRINTABLE = re.compile(r"[^ -~]")

# The plan


def place_values(case: Case, berth: Berth, start: float, *, packed: bool) -> JobPlan:
    """Returns the plan of a job with a place that is free at `start`, 0 for now."""
    demand = case.demand
    return (
        JobPlan.of(fields.STATE(fields.WAITING if start else fields.PLACED), fields.ID(case.submission.nonce))
        | demanded(case.request, demand)
        | berth_values(berth, share=demand.share.percent if demand.share else 0, packed=packed, tier=demand.tier.name)
        | insisted_on(case.insists)
        | JobPlan.of(
            fields.AT(int(case.context.now)), fields.START(int(start) or None), fields.PINS(0), fields.WHY(berth.why)
        )
        | case.request.said
    )


def demanded(request: Request, demand: Demand) -> JobPlan:
    """Returns the request as its user wrote it, and its demand on this fleet."""
    of_job = JobPlan.of(
        fields.ASKED(request.asked),
        fields.WAS(request.was if demand.written.mem_per_node is not None else _without_memory(request.was)),
        fields.N(demand.n),
        fields.K(demand.k),
        fields.CPUS(demand.cpus),
        fields.MEM(demand.mem),
        fields.SHUT(demand.written.shut or None),
    )
    ways = tuple(fields.Split(one.n, one.mem) for one in demand.every_split) if demand.splits else None
    needs = demand.spread if demand.spread is not None and demand.spread.restores else None
    return of_job | JobPlan.of(fields.SPLITS(ways), SPREAD(needs)) | _shared(demand.share) | _tiered(demand)


def _without_memory(was: Pairs) -> Pairs:
    """A pin leaves memory for each GPU as it is where Slurm counts the job's GPUs."""
    return tuple((key, value) for key, value in was if key != "mem_per_tres")


def _tiered(demand: Demand) -> JobPlan:
    """Returns the fields of hosts, guests, and jobs that may become guests; nothing for most jobs."""
    if demand.tier is ALONE and demand.written.guest_after is None:
        return NOTHING
    host = demand.tier.name == GUARANTEED
    return JobPlan.of(
        fields.TIER(GUARANTEED if host else None),
        fields.WAY(demand.host_way if host else None),
        fields.GPU_MEM(demand.gpu_mem if demand.share is None and demand.tier is not ALONE else None),
        fields.MPS(demand.tier.mps),
        fields.UPGRADE(demand.written.guest_after),
    )


def _shared(share: Share | None) -> JobPlan:
    """Returns the fields of a packed job's request; `mem` is the node's memory."""
    if share is None:
        return NOTHING
    return JobPlan.of(fields.SHARE(share.percent), fields.GPU_MEM(share.gpu_mem), fields.WAY(share.way))


def insisted_on(insists: Insistence | None) -> JobPlan:
    """Returns the level that a job insists on, and for how long."""
    return JobPlan.of(fields.INSISTS(insists.level), fields.WAIT(insists.wait)) if insists else NOTHING


def berth_values(berth: Berth, *, share: int = 0, packed: bool = False, tier: str = EXCLUSIVE) -> JobPlan:
    """Returns the fields that name the place; `share` is the percent that a packed job asked for, 0 for whole GPUs.

    Slurm counts percent, but knows neither whose jobs may share a GPU nor a GPU's memory. So a packed job asks for its
    part only while its place is free, and until then for whole GPUs.
    """
    return JobPlan.of(
        fields.NODES(berth.names),
        fields.GPUS(berth.gpus),
        fields.SEATS(berth.seats and not packed and tier == EXCLUSIVE),
        *(_part_of(berth, share, packed=packed) if share else ()),
        fields.LEVEL(berth.level),
        fields.GBPS(berth.min_gbps),
        fields.SUM(berth.sum_gbps),
        fields.CUT(berth.cut or None),
    )


def _part_of(berth: Berth, share: int, *, packed: bool) -> Iterable[PlanEntry]:
    """Returns the fields that name the part of the GPUs that a packed job has."""
    return (
        fields.SHARE(max(share, berth.percent)),
        fields.ASKED_SHARE(share if share < berth.percent else None),
        fields.WHOLE(not packed),
        fields.GRANTED(berth.gpu_mem or None if packed else None),
    )


def moved(move: Move, at: float) -> JobPlan:
    """Returns the plan of a job after its pin has moved."""
    old = move.job.known.without(*_OF_THE_LAST_PLACE)
    if old.get(fields.TIER) == OPPORTUNISTIC:
        old = old.without(fields.TIER, fields.WAY)
    share = old.get(fields.ASKED_SHARE, old.get(fields.SHARE, 0))
    tier = OPPORTUNISTIC if move.way else old.get(fields.TIER, EXCLUSIVE)
    return (
        old.without(fields.ASKED_SHARE)
        | move.adopted
        | fields.laid_on(old, len(move.berth.nodes))
        | JobPlan.of(fields.STATE(fields.WAITING if move.start else fields.PLACED))
        | berth_values(move.berth, share=share, packed=share > 0 and not move.start, tier=tier)
        | (seat_values(move.way) if move.way else NOTHING)
        | JobPlan.of(
            fields.SLOPE(move.slope),
            fields.SMS(move.sms),
            fields.NEED(move.need),
            fields.AT(int(at)),
            fields.PINS(old.get(fields.PINS, 0) + 1),
            fields.WHY(f"{move.reason}; {move.berth.why}"),
            fields.START(int(move.start) or None),
        )
    )


def seat_values(way: str) -> JobPlan:
    """Returns the fields of a job on a seat."""
    return JobPlan.of(fields.TIER(OPPORTUNISTIC), fields.WAY(way))


_OF_THE_LAST_PLACE = (
    *(
        fields.START,
        *fields.REASON,
        fields.WHOLE,
        fields.GRANTED,
        fields.CUT,
        fields.PARKED,
        fields.HELD,
        fields.HELD_TEXT,
        fields.SLOPE,
        fields.SMS,
        fields.NEED,
        fields.OPEN,
    ),
    *fields.UNDER_WAY,
)


def parked(park: Park, at: float) -> JobPlan:
    """Returns the plan of a guest without a seat."""
    old = park.job.known.without(*fields.REASON)
    return old.having(
        fields.STATE(fields.LATER),
        fields.TIER(OPPORTUNISTIC),
        fields.PARKED(parked_until(park.job) or 0),
        fields.AT(int(at)),
        fields.WHY(tagged(park.reason, 608)),
    )


# The line


def placed(berth: Berth, share: Share | None = None) -> str:
    """Describes a place that is free now."""
    return f"{place(berth, share)}: {links(berth)}{_NEAR.get(berth.level, '') if len(berth.names) > 1 else ''}"


_NEAR = {"nvlink": ", all in one NVLink domain", "leaf": ", all in one leaf", "pod": ", all in one pod"}


def waiting(berth: Berth, demand: Demand, seconds: float, insists: Insistence | None) -> str:
    """Describes a place that comes free later."""
    text = f"waits for {place(berth, demand.share)}, expected in {duration(seconds)}"
    level = binding(insists.level, demand.n) if insists else ""
    if insists and insists.wait and level in _FOR and demand.gpus > 1:
        text += f"; waits up to {duration(insists.wait)} for {_FOR[level]}"
    return text


_FOR = {"nvlink": "NVLink between all pairs", "leaf": "nodes of one leaf", "pod": "nodes of one pod"}


def on_nodes(plan: JobPlan, now: float) -> str:
    """Returns the line about a place of which Slurm chooses the GPUs, from the plan."""
    names = plan[fields.NODES]
    where = _in_short(names)
    near = _NEAR.get(plan.get(fields.LEVEL, ""), "") if len(names) > 1 else ""
    if start := plan.get(fields.START):
        return line(f"waits for {where}{near}, expected in {duration(max(0, start - int(now)))}", 102)
    return line(f"{where}{near}; Slurm chooses its GPUs there", 101)


def _in_short(names: Sequence[str]) -> str:
    return ",".join(names) if len(names) <= 4 else f"{','.join(names[:3])} and {len(names) - 3} more"


def place(berth: Berth, share: Share | None = None) -> str:
    """Names nodes and GPUs in short, such as `n1 GPUs 0,3` or `30 % of n1 GPU 0, with 12288 MiB`."""
    gpus = f"{_in_short(berth.names)} GPU{'s' if len(berth.gpus) > 1 else ''} {hostlist.fold_numbers(berth.gpus)}"
    if share is None:
        return gpus
    memory = "" if share.gpu_mem is None else f", with {share.gpu_mem} MiB{' of each' if len(berth.gpus) > 1 else ''}"
    counts = f", which counts as {berth.percent} %" if berth.percent > share.percent else ""
    return f"{share.percent} % of {gpus}{memory}{counts}"


def links(berth: Berth) -> str:
    """Describes how the GPUs on a node are linked."""
    pairs = len(berth.gpus) * (len(berth.gpus) - 1) // 2
    if not pairs:
        return "one GPU on each node" if len(berth.names) > 1 else "one GPU"
    on_each = " on each node" if len(berth.names) > 1 else ""
    speed = f"all-reduce about {berth.cut * fields.ALL_REDUCE:.0f} GB/s{on_each}"
    if berth.min_gbps > 0:
        least = "" if abs(berth.sum_gbps - berth.min_gbps * pairs) < 0.05 * pairs else "at least "
        return f"NVLink {least}{gbps(berth.min_gbps)} between every pair, {speed}"
    return f"{'NVLink joins some pairs' if berth.sum_gbps > 0 else 'no NVLink between them'}, {speed}"


def notes(flags: Collection[str]) -> list[str]:
    """Returns notes about flags that do nothing by themselves."""
    if "gpu-mem" in flags and not {"gpu-share", "gpu-tier"} & set(flags):
        return ["--gpu-mem: accepted, it acts beside --gpu-share or --gpu-tier"]
    return []


def notes_of(request: Request, settings: Settings) -> list[str]:
    """Returns the notes about a request, with those on `--movable` by the site's settings."""
    said = notes(request.flags)
    if "movable" in request.flags:
        if not settings.moving.enabled:
            said.append("--movable: accepted, this site moves no jobs")
        elif why := _never_moved(request):
            said.append(f"--movable: accepted, {why} is never moved")
    return said


def _never_moved(request: Request) -> str:
    if not request.batch:
        return "a job without a script"
    if request.het:
        return "a part of a heterogeneous job"
    return "a packed job" if request.share else ""


def line(text: str, number: int, more: Iterable[str] = ()) -> str:
    """Returns one printable line of at most 512 bytes, with its id at the end."""
    whole = "; ".join([f"berth: {text}", *more])
    whole = _NOT_PRINTABLE.sub("?", whole)
    end = tag(number)
    most = MOST_BYTES - len(end)
    return (whole if len(whole) <= most else whole[: most - 3] + "...") + end


def gbps(value: float) -> str:
    """Formats a bandwidth with its unit."""
    return f"{value:.0f} GB/s" if value == int(value) or value >= 100 else f"{value:.1f} GB/s"


def duration(seconds: float) -> str:
    """Formats a time in a readable unit."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    if seconds < 48 * 3_600:
        return f"{round(seconds / 3_600)} h"
    return f"{round(seconds / 86_400)} days"
