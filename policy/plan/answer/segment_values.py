"""The segment values that a decision writes into a job: its request, its place, and the level that it insists on."""

from policy.formats import split_text
from policy.formats.messages import tagged
from policy.formats.segment import LATER, UNDER_WAY
from policy.placement.base import Berth
from policy.plan.answer.guest import seat_values
from policy.plan.changes import Move, Park
from policy.request import splits, spread
from policy.request.demand import Demand
from policy.request.locality import Insistence
from policy.request.parse import Request
from policy.request.share import Share
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC


def place_values(
    nonce: str,
    request: Request,
    demand: Demand,
    berth: Berth,
    start: float,
    now: float,
    insists: Insistence | None,
    *,
    packed: bool,
) -> dict[str, str]:
    """Returns the segment of a job with a place."""
    return {
        "state": "waiting" if start else "placed",
        "id": nonce,
        **demanded(request, demand),
        **berth_values(berth, share=demand.share.percent if demand.share else 0, packed=packed, tier=demand.tier.name),
        **insisted_on(insists),
        "at": str(int(now)),
        **({"start": str(int(start))} if start else {}),
        "pins": "0",
        "why": berth.why,
        **request.said,
    }


def demanded(request: Request, demand: Demand) -> dict[str, str]:
    """Returns the request as its user wrote it, and its demand on this fleet."""
    return {
        "asked": request.asked,
        "was": request.was if demand.mem_per_node is not None else _without_memory(request.was),
        "n": str(demand.n),
        "k": str(demand.k),
        **({} if demand.cpus is None else {"cpus": str(demand.cpus)}),
        **({} if demand.mem is None else {"mem": str(demand.mem)}),
        **({"shut": ",".join(demand.shut)} if demand.shut else {}),
        **splits.text(demand),
        **spread.text(demand.spread),
        **_shared(demand.share),
        **_tiered(demand),
    }


def _without_memory(was: str) -> str:
    """A pin leaves memory for each GPU as it is where Slurm counts the job's GPUs."""
    return ";".join(word for word in was.split(";") if not word.startswith("mem_per_tres:"))


def _tiered(demand: Demand) -> dict[str, str]:
    """Returns the values for hosts, guests, and jobs that may become guests; empty for most jobs."""
    if demand.tier is ALONE and demand.guest_after is None:
        return {}
    host = {"tier": GUARANTEED, "way": demand.host_way}
    gpu_mem = demand.gpu_mem if demand.share is None and demand.tier is not ALONE else None
    return {
        **(host if demand.tier.name == GUARANTEED else {}),
        **({} if gpu_mem is None else {"gpu_mem": str(gpu_mem)}),
        **({"mps": "1"} if demand.tier.mps else {}),
        **({} if demand.guest_after is None else {"upgrade": str(demand.guest_after)}),
    }


def _shared(share: Share | None) -> dict[str, str]:
    """Returns the values for a packed job's request; `mem` in the segment is the node's memory."""
    if share is None:
        return {}
    gpu_mem = {} if share.gpu_mem is None else {"gpu_mem": str(share.gpu_mem)}
    return {"share": str(share.percent), **gpu_mem, "way": share.way}


def insisted_on(insists: Insistence | None) -> dict[str, str]:
    """Returns the level that a job insists on, and for how long."""
    return {"insists": insists.level, "wait": str(insists.wait)} if insists else {}


def berth_values(berth: Berth, *, share: int = 0, packed: bool = False, tier: str = EXCLUSIVE) -> dict[str, str]:
    """Returns the values that name the place; `share` is the percent that a packed job asked for, 0 for whole GPUs.

    Slurm counts percent, but knows neither whose jobs may share a GPU nor a GPU's memory. So a packed job asks for its
    part only while its place is free, and until then for whole GPUs.
    """
    return {
        "nodes": ",".join(berth.names),
        "gpus": ",".join(map(str, berth.gpus)),
        "seats": "1" if berth.seats and not packed and tier == EXCLUSIVE else "0",
        **({"share": str(max(share, berth.percent))} if share else {}),
        **({"asked_share": str(share)} if 0 < share < berth.percent else {}),
        **({"whole": "1"} if share and not packed else {}),
        **({"granted": str(berth.gpu_mem)} if packed and berth.gpu_mem else {}),
        "level": berth.level,
        "gbps": f"{berth.min_gbps:g}",
        "sum": f"{berth.sum_gbps:g}",
    }


def moved(move: Move, at: float) -> dict[str, str]:
    """Returns the segment of a job after its pin has moved."""
    old = {key: value for key, value in (move.job.segment or {}).items() if key not in _OF_THE_LAST_PLACE}
    if old.get("tier") == OPPORTUNISTIC:
        del old["tier"]
        old.pop("way", None)
    share = int(old.pop("asked_share", old.get("share", "0")))
    tier = OPPORTUNISTIC if move.way else old.get("tier", EXCLUSIVE)
    values = {
        **old,
        **move.adopted,
        **split_text.on(old, len(move.berth.nodes)),
        "state": "waiting" if move.start else "placed",
        **berth_values(move.berth, share=share, packed=share > 0 and not move.start, tier=tier),
        **(seat_values(move.way) if move.way else {}),
        **({} if move.slope is None else {"slope": f"{move.slope:.2f}"}),
        **({} if move.sms is None else {"sms": str(move.sms)}),
        "at": str(int(at)),
        "pins": str(int(old.get("pins", "0")) + 1),
        "why": f"{move.reason}; {move.berth.why}",
    }
    if move.start:
        values["start"] = str(int(move.start))
    return values


_OF_THE_LAST_PLACE = (
    frozenset(
        {
            "start",
            "because",
            "because_text",
            "whole",
            "granted",
            "parked",
            "held",
            "held_text",
            "slope",
            "sms",
            spread.OPEN,
        }
    )
    | UNDER_WAY
)


def parked(park: Park, at: float) -> dict[str, str]:
    """Returns the segment of a guest without a seat."""
    old = {key: value for key, value in (park.job.segment or {}).items() if not key.startswith("because")}
    begin = old.get("parked", "0")
    return {
        **old,
        "state": LATER,
        "tier": OPPORTUNISTIC,
        "parked": begin,
        "at": str(int(at)),
        "why": tagged(park.reason, 608),
    }
