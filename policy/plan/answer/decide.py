"""The decision: turns a submit request into a reply. It is a pure step, used by berthd and all other callers."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policy.cluster import reserved
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import others
from policy.formats import pin_text, preflight_mark, segment
from policy.formats.errors import Answer, FormatError, Impossible, LeftToSlurm, Never, NotNow, OutOfTime, TooLong
from policy.formats.excluded_nodes import KEY as OTHERS
from policy.formats.excluded_nodes import mark_of
from policy.formats.messages import tagged
from policy.formats.wire import number
from policy.placement.base import Berth, Policy
from policy.plan.answer import message
from policy.plan.answer.guest import Answer as GuestAnswer
from policy.plan.answer.guest import on_a_seat, parked
from policy.plan.answer.known_requests import Understanding
from policy.plan.answer.segment_values import demanded, insisted_on, place_values
from policy.plan.book import Book
from policy.plan.claims import Claim, claim_on
from policy.plan.later_places import LaterPlace, first_place
from policy.plan.splitting import first_of_splits, free_now
from policy.plan.spreading import claims_on, parts_now
from policy.request import counted, locality, splits, spread
from policy.request.demand import ELSEWHERE, Demand
from policy.request.parse import Request, flags_of, names_gpus, wanted_gpus
from policy.request.settings import Settings
from policy.request.share import Share, foes_of, party
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC

MOST_NODES = 1_024

HoldsFor = Literal["one", "kind", "any limit"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A reply's verb and fields, and the claim of the place, if there is one."""

    verb: str
    fields: dict[str, str]
    claim: Claim | None = None
    holds_for: HoldsFor = "one"
    """The jobs that would get the same reply while the book does not change.

    `one`: only this job. `kind`: all that differ only in nonce, name and user. `any limit`: also those with other time
    limits, if they see the same GPUs free."""


def decide(
    fields: Mapping[str, str],
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    understanding: Understanding | None = None,
    stale: str = "",
) -> Decision:
    """Answers a submit request; `stale` says why the book is too old for a choice of place, empty if it is not."""
    decision = _decide(fields, book, policy, settings, now, understanding, stale)
    try:
        if "guest" in decision.fields:
            pin_text.check(_longest_seat(decision.fields, book), fields)
        elif decision.verb == "place":
            pin_text.check(decision.fields, fields)
    except TooLong as problem:
        # A guest left to Slurm would get a GPU of its own, which its tier may not allow.
        decision = say_no(fields, Never(str(problem), 412) if "guest" in decision.fields else problem, now)
    return with_preflight(decision, fields)


def with_preflight(decision: Decision, fields: Mapping[str, str]) -> Decision:
    """Returns the decision with the job's pre-flight in its segment, where it has one."""
    if preflight_mark.KEY not in fields:
        return decision
    return replace(decision, fields=preflight_mark.kept(decision.fields, fields[preflight_mark.KEY]))


def _longest_seat(reply: Mapping[str, str], book: Book) -> dict[str, str]:
    """Returns the reply with the longest values that a guest's Extra may have to hold on any later seat."""
    name = max(book.fleet.names, key=len, default="")
    longest = {"nodes": name, "gpus": "63", "seats": "0", "share": "100", "mem": str(1 << 24), "way": "time"}
    return {**reply, **longest}


def _decide(
    fields: Mapping[str, str],
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    understanding: Understanding | None,
    stale: str,
) -> Decision:
    try:
        known = (understanding or Understanding()).of(fields, book.fleet)
        request, demand = known.request, known.demand
        if demand.share is not None:
            uid = number(fields, "uid") or 0
            sharing, mate = book.fleet.sharing, (uid, fields.get("name", ""))
            picky = book.cluster.neighbours is not None and sharing.company_wait > 0
            share = replace(
                demand.share, party=party(uid, sharing), mate=mate, foes=foes_of(mate, sharing), picky=picky
            )
            demand = replace(demand, share=share)
        elif demand.tier is not ALONE:
            demand = replace(demand, user=number(fields, "uid") or 0)
        if demand.tier.name == OPPORTUNISTIC:
            if guest := _as_guest(fields, request, demand, book, policy, now, stale):
                return guest
            demand = replace(demand, tier=replace(demand.tier, name=EXCLUSIVE))
        decision = _place(fields, request, demand, book, policy, settings, now, stale)
        starts = segment.starts_now(decision.fields.get("segment", ""))
        if book.cluster.rooms and not (stale or request.later):
            left = _by_reservation(fields, request, demand, book, now, settings, starts=starts)
            decision = left or decision
            starts |= left is not None
        if demand.spread is None or stale or request.later or starts:
            return decision
        if request.array:
            return decision  # each of its tasks starts so in the planner's passes
        return _on_several_nodes(fields, request, demand, book, policy, settings, now) or decision
    except (Answer, FormatError) as answer:
        return say_no(fields, answer, now)


def only_watch(decision: Decision) -> Decision:
    """Returns the decision for a site that only watches: the place is noted in the segment, and Slurm chooses."""
    if decision.verb == "pass":
        silent = {key: value for key, value in decision.fields.items() if key not in {"message", "urgent", "licenses"}}
        if segment.LATER not in silent.get("segment", "").partition(" ")[0]:
            return Decision("pass", silent)
    elif decision.verb not in {"place", "later"}:
        return decision
    body = decision.fields["segment"]
    values = segment.fields(f"[berth/1 {body}]") or {}
    values["state"] = segment.OBSERVED
    values.pop(OTHERS, None)
    return Decision("pass", {"nonce": decision.fields["nonce"], "segment": segment.body(values)})


def say_no(fields: Mapping[str, str], answer: Exception, now: float) -> Decision:
    """Returns the reply without a place: left to Slurm, or refused if a Berth flag can never be met or is wrong."""
    reason = str(answer)
    urgent = isinstance(answer, Impossible)
    try:
        flags = flags_of(fields)
    except FormatError as wrong_flag:
        return Decision("refuse", {"nonce": fields["nonce"], "message": message.line(str(wrong_flag), WRONG_FLAG)})
    message_id = _number_of(answer)
    if isinstance(answer, Never):
        return Decision("refuse", {"nonce": fields["nonce"], "message": message.line(reason, message_id)})
    values = {
        "state": "passed",
        "id": fields["nonce"],
        "at": str(int(now)),
        "why": tagged(reason, message_id),
        **{f"f.{name}": value for name, value in flags.items()},
    }
    notes = message.notes(flags)
    for name in ("locality", "gpu-share", "gpu-tier"):
        if name in flags:
            notes.insert(0, f"--{name}: not acted on")
    reply = {
        "nonce": fields["nonce"],
        "segment": segment.body(values),
        "message": message.line(reason if urgent else f"left to Slurm: {reason}", message_id, notes),
        **({"urgent": "1"} if urgent else {}),
    }
    return Decision("pass", reply)


WRONG_FLAG, TOO_LONG, NOT_READ, STALE, ON_SEVERAL_NODES = 401, 212, 224, 214, 225
"""Numbers of messages about a flag, a text and a request."""


def _number_of(answer: Exception) -> int:
    """Returns the number of the message about a request; errors have numbers of their own for other readers."""
    if isinstance(answer, TooLong):
        return TOO_LONG
    return answer.number if isinstance(answer, Answer) else NOT_READ


def _place(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    stale: str,
) -> Decision:
    insists = _insistence(request, demand, book.fleet, settings)
    wide = splits.at(demand, "any")
    demand = wide if insists is None else splits.at(demand, insists.level)
    if demand.level == "nvlink" and (never := _never_on_any_split(request, demand, book)):
        if request.locality is not None:
            raise Never(never, 404)
        # The site's rule applies only to jobs that can meet it; only a user's own flag can be refused.
        insists, demand = None, wide
    wanted = wanted_gpus(fields)
    if wanted is not None and wanted != demand.n * demand.k and names_gpus(fields):
        raise LeftToSlurm(f"{demand.n} x {demand.k} GPUs are not the {wanted} that the request counts", 206)
    if stale:
        return _later(fields, request, wide, LeftToSlurm(stale, STALE), insists, now, settings)
    try:
        at_once = insists is not None and insists.wait == 0
        berth, start = _soonest(demand, wide, book, policy, relax_at_once=at_once, ahead=settings.pin_ahead)
        nothing_in_sight: NotNow | None = None
        _leave_if_sooner(demand, insists, "no place is free now" if start else "")
        _check_pin(settings, starts_now=not (start or request.later))
    except NotNow as nothing:
        _leave_if_sooner(demand, insists, str(nothing))
        # Pinned all the same: if a node came back, Slurm would start the job before the planner could pin it.
        try:
            _check_pin(settings, starts_now=False)
            berth, start, nothing_in_sight = book.some_day(demand, policy), 0.0, nothing
        except NotNow:
            return _later(fields, request, wide, nothing, insists, now, settings)
    demand = wide.on(len(berth.nodes))
    begin = number(fields, "begin") or 0
    start = max(start, float(begin) if begin > now else 0.0)
    packed = not (start or request.later or nothing_in_sight) and book.takes_part(demand, berth.nodes, berth.mask)
    values = place_values(fields["nonce"], request, demand, berth, start, now, insists, packed=packed)
    excluded = _excluded(fields, request, berth, book.fleet, settings)
    values |= {OTHERS: mark_of(excluded)} if excluded else {}
    body = segment.body(values)
    if len(body) > segment.MAX_BODY or demand.n > MOST_NODES:
        raise LeftToSlurm(f"a place on {demand.n} nodes is too long to be written into the job", 212)
    if nothing_in_sight:
        why = tagged(nothing_in_sight, nothing_in_sight.number)
        body = segment.body({**values, "state": "waiting", "why": why})
        message_id = nothing_in_sight.number
        text = f"waits for {message.place(berth, demand.share)}, or what comes before: {nothing_in_sight}"
    elif start:
        text = message.waiting(berth, demand, start - int(now), insists)
        message_id = 102
    else:
        text = message.placed(berth, demand.share) + (", if still free when the job may start" if request.later else "")
        message_id = 101
    if "test" in fields:
        # The full reason is only for a request that asks and does not submit.
        text += f"; {berth.why}"
    reply = {
        "nonce": fields["nonce"],
        "nodes": values["nodes"],
        "gpus": values["gpus"],
        "seats": values["seats"],
        **({"exc_nodes": excluded} if excluded else {}),
        **_counted(book.fleet, demand, berth),
        **(share_on_the_node(demand.share, berth) if packed and demand.share else {}),
        **(_host_on_the_node(demand) if demand.tier.name == GUARANTEED else {}),
        **_given(demand),
        "segment": body,
        "message": message.line(text, message_id, [*_host_notes(demand), *message.notes_of(request, settings)]),
    }
    claim = None
    if not (request.later or "test" in fields or nothing_in_sight):
        # Free GPUs are claimed at once: the next request is answered from the same picture.
        claim = claim_on(book.fleet, demand, berth.nodes, berth.mask, start or book.cluster.at)
    return Decision("place", reply, claim, _holds_for(request, demand, free_now=not (start or nothing_in_sight)))


def _counted(fleet: Fleet, demand: Demand, berth: Berth) -> dict[str, str]:
    """Returns the licences that count whole GPUs by model."""
    found = fleet.licences(berth.names, demand.k) if demand.share is None else {}
    return {"licenses": counted.text(found)} if found else {}


def _excluded(fields: Mapping[str, str], request: Request, berth: Berth, fleet: Fleet, settings: Settings) -> str:
    # Slurm does not test a job that may not start yet; it gets its list when it may (daemon/write/lists.py).
    if request.later or fields.get("exc_nodes") or not settings.excludes_others(len(fleet.names)):
        return ""
    return others(fleet, request.partition or fleet.default_partition or "", berth.names)


def _holds_for(request: Request, demand: Demand, *, free_now: bool) -> HoldsFor:
    if demand.share is not None or demand.tier is not ALONE:
        # For jobs that share GPUs the user matters.
        return "one"
    one_node = demand.n == 1 and not demand.splits
    # With several partitions the limit decides which may start it; jobs on several nodes may wait for others to end.
    return "any limit" if free_now and one_node and "," not in (request.partition or "") else "kind"


def _insistence(request: Request, demand: Demand, fleet: Fleet, settings: Settings) -> locality.Insistence | None:
    """Returns the level that a job insists on; None if Slurm's blocks leave no choice."""
    blocks, asked = fleet.fabric.blocks, request.locality
    if asked is None and request.switches is not None and blocks is None and fleet.fabric.at("leaf").any:
        # With a tree of switches Slurm would hold back a job that is pinned to more leaves than it asked for.
        asked = locality.of_switches(request.switches, request.switch_wait, demand.n)
    found = locality.settle(asked, demand.gpus, settings.locality_rules, settings.locality_wait, settings.locality_cap)
    bound = blocks is not None and 1 < demand.n <= blocks.sizes[0]
    return None if bound and found is not None and found.level in {"leaf", "pod"} else found


def _on_several_nodes(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
) -> Decision | None:
    """Returns the reply for a job that Slurm starts now on several nodes as it likes; None if it has no room there."""
    needs, insists = demand.spread, _insistence(request, demand, book.fleet, settings)
    if needs is None or (insists is not None and insists.wait):
        return None
    parts = parts_now(book, needs, demand.gpus, demand.limit)
    if not parts or _is_free(demand, book, policy):
        return None
    said = f"it can start now on {len(parts)} nodes, where Slurm chooses its GPUs"
    decision = say_no(fields, LeftToSlurm(said, ON_SEVERAL_NODES), now)
    if request.batch and needs.restores:
        decision = Decision("pass", _open(fields, request, demand, insists, now, LeftToSlurm(said, 107), settings))
    if needs.model:
        licences = counted.text(counted.of(needs.model, demand.gpus))
        decision = replace(decision, fields={**decision.fields, "licenses": licences})
    first, *others = claims_on(needs, parts, book.cluster.at, demand.limit)
    return decision if "test" in fields else replace(decision, claim=replace(first, others=tuple(others)))


def _is_free(demand: Demand, book: Book, policy: Policy) -> bool:
    """Tells whether a place is free, and the job waits because it ends sooner on faster GPUs."""
    with suppress(NotNow):
        free_now(demand, lambda one: book.now(one, policy))
        return True
    return False


def _unplaced(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    insists: locality.Insistence | None,
    now: float,
    why: Answer,
    more: Mapping[str, str],
) -> dict[str, str]:
    """Returns the segment's values for a job to which the planner gives a place later."""
    return {
        "state": segment.LATER,
        "id": fields["nonce"],
        **demanded(request, demand),
        **insisted_on(insists),
        "at": str(int(now)),
        "pins": "0",
        "why": tagged(why, why.number),
        **more,
        **request.said,
    }


def _open(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    insists: locality.Insistence | None,
    now: float,
    why: Answer,
    settings: Settings,
) -> dict[str, str]:
    """Returns the reply's fields for a job that keeps its user's request until the planner gives it a place."""
    values = _unplaced(fields, request, demand, insists, now, why, {spread.OPEN: "1"})
    told = message.line(str(why), why.number, message.notes_of(request, settings))
    return {"nonce": fields["nonce"], "segment": segment.body(values), "message": told}


def _by_reservation(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    book: Book,
    now: float,
    settings: Settings,
    *,
    starts: bool,
) -> Decision | None:
    """Returns the reply for a job that Slurm may start now in a reservation, or beside what that one takes of a node.

    None if there is no room. A job that `starts` now goes in a magnetic reservation alone.
    """
    insists, user, at = _insistence(request, demand, book.fleet, settings), number(fields, "uid") or 0, book.cluster.at
    if request.het or "test" in fields or (insists is not None and insists.wait):
        return None
    wide = splits.at(demand, "any")
    name = reserved.first(book.cluster.rooms, wide, at, user, request.account, magnetic=starts)
    if not name:
        return None
    why = LeftToSlurm(f"Slurm may start it by reservation {name}, where Slurm chooses its GPUs", 203)
    if request.batch and demand.spread is not None and demand.spread.restores and not request.array:
        return Decision("pass", _open(fields, request, wide, insists, now, why, settings))
    return _later(fields, request, wide, why, insists, now, settings)


def _later(
    fields: Mapping[str, str],
    request: Request,
    demand: Demand,
    why: Answer,
    insists: locality.Insistence | None,
    now: float,
    settings: Settings,
) -> Decision:
    """Returns the reply for a job without a place in sight; the planner looks for one in each pass."""
    if fields.get("client") != "batch":
        # srun and salloc use their own request for the first step, and a pin that comes later does not fit that.
        raise LeftToSlurm(str(why), why.number)
    if demand.n > MOST_NODES:
        raise LeftToSlurm(f"a job on {demand.n} nodes is more than can be pinned", 212)
    if demand.spread is not None and demand.spread.restores and not (request.array or settings.pin_ahead):
        # No later place would be pinned either, and Slurm may spread it.
        return Decision("pass", _open(fields, request, demand, insists, now, why, settings))
    values = _unplaced(fields, request, demand, insists, now, why, {})
    reply = {
        "nonce": fields["nonce"],
        "n": str(demand.n),
        "k": str(demand.k),
        **({} if demand.share is None else {"share": str(demand.share.percent)}),
        **_given(demand),
        "segment": segment.body(values),
        "message": message.line(f"no place is in sight yet: {why}", why.number, message.notes_of(request, settings)),
    }
    return Decision("later", reply, holds_for=_holds_for(request, demand, free_now=False))


def _as_guest(
    fields: Mapping[str, str], request: Request, demand: Demand, book: Book, policy: Policy, now: float, stale: str
) -> Decision | None:
    """Returns the reply with a seat for a guest; None if it can have GPUs of its own now, or waits for these."""
    base = {**demanded(request, demand), **request.said}
    if demand.tier.upgrade and not stale:
        with suppress(NotNow):
            book.now(replace(demand, tier=replace(demand.tier, name=EXCLUSIVE)), policy)
            return None
    try:
        return Decision(*_with(on_a_seat(fields, base, demand, book, now, stale), _given(demand)))
    except NotNow as nothing:
        if demand.tier.upgrade:
            return None
        return Decision(*_with(parked(fields, base, nothing, now), _given(demand)))


def _with(answer: GuestAnswer, more: Mapping[str, str]) -> GuestAnswer:
    verb, reply, claim = answer
    return verb, {**reply, **more}, claim


def _host_notes(demand: Demand) -> list[str]:
    if demand.tier.name != GUARANTEED:
        return []
    fate = ", at the same time and in one fault domain: its fatal error ends both" if demand.host_way == "mps" else ""
    if demand.tier.mps and not fate:
        fate = ", in turn: under MPS only hosts with one GPU on a node can have one"
    return [f"it may have a guest{fate}"]


def _host_on_the_node(demand: Demand) -> dict[str, str]:
    """Returns the values that the node needs about a job that may have a guest."""
    mem = {} if demand.gpu_mem is None else {"mem": str(demand.gpu_mem)}
    return {"way": demand.host_way, **mem}


def share_on_the_node(share: Share, berth: Berth) -> dict[str, str]:
    """Returns the values that the node needs about a packed job: the same numbers that it is planned with.

    The plugin tells the node beside them what was asked, where less than this is counted.
    """
    mem = {"mem": str(berth.gpu_mem)} if berth.gpu_mem else {}
    return {"share": str(max(share.percent, berth.percent)), **mem, "way": share.way}


def _given(demand: Demand) -> dict[str, str]:
    """Returns the CPUs and memory that were requested per GPU, and must now be given as numbers."""
    return {
        **({} if demand.min_cpus is None else {"min_cpus": str(demand.min_cpus)}),
        **({} if demand.min_cpus_per_node is None else {"pn_min_cpus": str(demand.min_cpus_per_node)}),
        **({} if demand.mem_per_node is None else {"mem_per_node": str(demand.mem_per_node)}),
    }


def _soonest(
    demand: Demand, wide: Demand, book: Book, policy: Policy, *, relax_at_once: bool, ahead: bool
) -> tuple[Berth, float]:
    try:
        if relax_at_once:
            try:
                return free_now(demand, lambda one: book.now(one, policy)), 0.0
            except NotNow:
                demand = wide
        first = first_place if ahead else _free_first
        return first_of_splits(book, demand, policy, first)
    except OutOfTime:
        raise
    except NotNow as nothing:
        if not bool((demand.candidates & book.cluster.up).any()):
            raise NotNow("every node that could hold it is down, drained or reserved", 306) from None
        raise NotNow(f"{nothing}, and no end of what runs there is in sight", 307) from None


def _free_first(book: Book, demand: Demand, policy: Policy) -> LaterPlace:
    return LaterPlace(*book.soonest(demand, policy))


def _leave_if_sooner(demand: Demand, insists: locality.Insistence | None, why_not_now: str) -> None:
    """Leaves a job to Slurm that cannot start now on nodes with types, and could on others."""
    if why_not_now and insists is None and demand.may_go_elsewhere:
        raise LeftToSlurm(f"{why_not_now}, and {ELSEWHERE}", 219)


def _check_pin(settings: Settings, *, starts_now: bool) -> None:
    """Raises NotNow if a place that is not free yet may not be written into the job."""
    if not (starts_now or settings.pin_ahead):
        raise NotNow("it cannot start now, and Slurm may preempt for it", 308)


def _never_on_any_split(request: Request, demand: Demand, book: Book) -> str:
    """Returns why no machines could ever meet `--locality=nvlink` on any split; empty if some can."""
    fewest, *others = (_never_at_level(request, one, book) for one in demand.every_split)
    return fewest if all(others) else ""


def _never_at_level(request: Request, demand: Demand, book: Book) -> str:
    """Returns why no machine could ever meet `--locality=nvlink`, and what would work; empty if one can."""
    fleet = book.fleet
    if demand.n > 1:
        if fleet.fabric.at("nvlink").most(np.flatnonzero(demand.candidates)) >= demand.n:
            return ""
        return (
            f"--locality=nvlink: no NVLink domain joins {demand.n} nodes that fit the job; "
            f"ask for GPUs of one node, or for --locality=node"
        )
    entries = (fleet.offset + fleet.full)[demand.candidates]
    for k in range(demand.k, 0, -1):
        if (fleet.tables.look_up(k, "nvlink", entries) >= 0).any():
            if k == demand.k:
                return ""
            break
    most = f"at most {k}: ask for {k} or fewer" if k > 1 else "none has NVLink: leave the flag out"
    where = f"partition {request.partition or fleet.default_partition}"
    return (
        f"--locality=nvlink: no node of {where} that fits the job joins {demand.k} GPUs pairwise by NVLink, {most}, "
        f"or ask for --locality=node"
    )
