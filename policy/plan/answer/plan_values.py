"""The fields that a decision keeps in a job's plan: the request, the place, and the level that the job insists on."""

from policy.formats import plan_fields as fields
from policy.formats.job_plan import NOTHING, JobPlan, Pairs
from policy.formats.messages import tagged
from policy.placement.base import Berth
from policy.plan.answer.case import Case
from policy.plan.ledger.changes import Move, Park
from policy.request.demand import Demand
from policy.request.locality import Insistence
from policy.request.share import Share
from policy.request.spread import SPREAD
from policy.request.submission import Request
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC


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
    return (
        NOTHING
        if share is None
        else JobPlan.of(fields.SHARE(share.percent), fields.GPU_MEM(share.gpu_mem), fields.WAY(share.way))
    )


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
        fields.SHARE(max(share, berth.percent) if share else None),
        fields.ASKED_SHARE(share if 0 < share < berth.percent else None),
        fields.WHOLE(bool(share) and not packed),
        fields.GRANTED(berth.gpu_mem or None if packed else None),
        fields.LEVEL(berth.level),
        fields.GBPS(berth.min_gbps),
        fields.SUM(berth.sum_gbps),
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
        fields.BECAUSE,
        fields.BECAUSE_TEXT,
        fields.WHOLE,
        fields.GRANTED,
        fields.PARKED,
        fields.HELD,
        fields.HELD_TEXT,
        fields.SLOPE,
        fields.SMS,
        fields.OPEN,
    ),
    *fields.UNDER_WAY,
)


def parked(park: Park, at: float) -> JobPlan:
    """Returns the plan of a guest without a seat."""
    old = park.job.known.without(fields.BECAUSE, fields.BECAUSE_TEXT)
    return old.having(
        fields.STATE(fields.LATER),
        fields.TIER(OPPORTUNISTIC),
        fields.PARKED(old.get(fields.PARKED, 0)),
        fields.AT(int(at)),
        fields.WHY(tagged(park.reason, 608)),
    )
