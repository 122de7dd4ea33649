"""The answer to a job that wants a seat: the best seat that is free now; else the job is parked until one is free."""

from collections.abc import Mapping
from dataclasses import replace

from policy.formats import segment
from policy.formats.errors import NotNow
from policy.formats.messages import tagged
from policy.formats.reply import Reply
from policy.plan.answer import message
from policy.plan.book import Book
from policy.plan.claims import Claim, seat_on
from policy.plan.guests import seats
from policy.plan.guests.guest_pass import PARKED_FOR
from policy.request.demand import Demand
from policy.request.submission import Submission


def on_a_seat(
    submission: Submission, base: Mapping[str, str], demand: Demand, book: Book, now: float, stale: str
) -> tuple[Reply, Claim | None]:
    """Returns a reply with a seat and its claim, or raises `NotNow`; `base` holds the plan's values of the request."""
    if stale:
        raise NotNow(stale, 214)
    # The planner gives tasks of an array their seats one by one.
    if submission.waits or submission.begin > now:
        raise NotNow("it may not begin yet", 309)
    # If jobs have profiles, the planner chooses the seats beside hosts, since it has these profiles.
    find = seats.find_idle if book.fleet.sharing.profiles else seats.find
    seat = find(demand, book.cluster)
    berth = seat.berth
    plan = {
        "state": "placed",
        "id": submission.nonce,
        **base,
        **seat_values(seat.way),
        "nodes": ",".join(berth.names),
        "gpus": ",".join(map(str, berth.gpus)),
        "seats": "0",
        "level": berth.level,
        "gbps": "0",
        "sum": "0",
        "at": str(int(now)),
        "pins": "0",
        "why": berth.why,
    }
    told = message.line(f"guest on {message.place(berth)}, {berth.why}", 103)
    reply = Reply("place", submission.nonce, told, plan, berth.names, berth.gpus, guest=True, way=seat.way)
    claim = None if submission.test else seat_on(demand, berth.nodes[0], berth.mask, book.cluster.at)
    return replace(reply, gpu_mem=demand.gpu_mem), claim


def parked(submission: Submission, base: Mapping[str, str], why: NotNow, now: float) -> Reply:
    """Returns a reply that parks the job on no node: its begin time holds it back, until berthd gives it a seat."""
    plan = {
        "state": segment.LATER,
        "id": submission.nonce,
        **base,
        "tier": "opportunistic",
        "parked": str(submission.begin),
        "at": str(int(now)),
        "pins": "0",
        "why": tagged(why, why.number),
    }
    told = message.line(f"a guest that waits for a seat: {why}", why.number)
    begin = max(int(now) + PARKED_FOR, submission.begin)
    return Reply("later", submission.nonce, told, plan, n=1, k=1, guest=True, begin=begin)


def seat_values(way: str) -> dict[str, str]:
    """Returns the segment's values for a job on a seat."""
    return {"tier": "opportunistic", "way": way}
