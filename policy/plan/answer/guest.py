"""The answer to a job that wants a seat: the best seat that is free now; else the job is parked until one is free."""

from collections.abc import Mapping

from policy.formats import segment
from policy.formats.errors import NotNow
from policy.formats.messages import tagged
from policy.formats.wire import number
from policy.plan.answer import message
from policy.plan.book import Book
from policy.plan.claims import Claim, seat_on
from policy.plan.guests import seats
from policy.plan.guests.guest_pass import PARKED_FOR
from policy.request.demand import Demand

Answer = tuple[str, dict[str, str], Claim | None]
"""A reply's verb and fields, and the claim of the seat."""


def on_a_seat(
    fields: Mapping[str, str], base: Mapping[str, str], demand: Demand, book: Book, now: float, stale: str
) -> Answer:
    """Returns a reply with a seat, or raises `NotNow`; `base` holds the segment's values about the request."""
    if stale:
        raise NotNow(stale, 214)
    if _later(fields, now):
        raise NotNow("it may not begin yet", 309)
    # If jobs have profiles, the planner chooses the seats beside hosts, since it has these profiles.
    find = seats.find_idle if book.fleet.sharing.profiles else seats.find
    seat = find(demand, book.cluster)
    berth = seat.berth
    values = {
        "state": "placed",
        "id": fields["nonce"],
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
    reply = {
        "nonce": fields["nonce"],
        "nodes": values["nodes"],
        "gpus": values["gpus"],
        "seats": "0",
        "guest": "1",
        "way": seat.way,
        **({} if demand.gpu_mem is None else {"mem": str(demand.gpu_mem)}),
        "segment": segment.body(values),
        "message": message.line(f"guest on {message.place(berth)}, {berth.why}", 103),
    }
    claim = None if "test" in fields else seat_on(demand, berth.nodes[0], berth.mask, book.cluster.at)
    return "place", reply, claim


def parked(fields: Mapping[str, str], base: Mapping[str, str], why: NotNow, now: float) -> Answer:
    """Returns a reply that parks the job on no node: its begin time holds it back, until berthd gives it a seat."""
    values = {
        "state": segment.LATER,
        "id": fields["nonce"],
        **base,
        "tier": "opportunistic",
        "parked": str(number(fields, "begin") or 0),
        "at": str(int(now)),
        "pins": "0",
        "why": tagged(why, why.number),
    }
    reply = {
        "nonce": fields["nonce"],
        "n": "1",
        "k": "1",
        "guest": "1",
        "begin": str(max(int(now) + PARKED_FOR, int(values["parked"]))),
        "segment": segment.body(values),
        "message": message.line(f"a guest that waits for a seat: {why}", why.number),
    }
    return "later", reply, None


def seat_values(way: str) -> dict[str, str]:
    """Returns the segment's values for a job on a seat."""
    return {"tier": "opportunistic", "way": way}


def _later(fields: Mapping[str, str], now: float) -> bool:
    # The planner gives tasks of an array their seats one by one.
    held = any(key in fields for key in ("held", "dependency", "array"))
    return held or (number(fields, "begin") or 0) > now
