"""The decision: turns a submission into a reply. It is a pure step, used by berthd and all other callers."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policy.cluster import reserved
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import others
from policy.formats import pin_text, preflight_mark
from policy.formats import plan_fields as fields
from policy.formats.errors import Answer, FormatError, Impossible, LeftToSlurm, Never, NotNow, OutOfTime, TooLong
from policy.formats.excluded_nodes import mark_of
from policy.formats.job_plan import JobPlan, flag
from policy.formats.messages import tagged
from policy.formats.reply import Reply
from policy.placement.base import Berth, Policy
from policy.plan.answer import message
from policy.plan.answer.guest import on_a_seat, parked
from policy.plan.answer.known_requests import Understanding
from policy.plan.answer.plan_values import demanded, insisted_on, place_values
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim, claim_on
from policy.plan.ledger.later_places import LaterPlace, first_place
from policy.plan.ledger.pinnable import free_now
from policy.plan.opinions.splitting import first_of_splits
from policy.plan.opinions.spreading import claims_on, parts_now
from policy.request import counted, locality, splits
from policy.request.demand import ELSEWHERE, Demand
from policy.request.parse import Request
from policy.request.settings import Settings
from policy.request.share import Share, foes_of, party
from policy.request.submission import Submission
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC

MOST_NODES = 1_024

_FEW_NODES = 16
"""Nodes whose names are surely no longer than a job's record takes."""

HoldsFor = Literal["one", "kind", "any limit"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A reply, and the claim of the place, if there is one."""

    reply: Reply
    claim: Claim | None = None
    holds_for: HoldsFor = "one"
    """The jobs that would get the same reply while the book does not change.

    `one`: only this job. `kind`: all that differ only in nonce, name and user. `any limit`: also those with other time
    limits, if they see the same GPUs free."""


@dataclass(frozen=True, slots=True)
class Context:
    """All that a decision depends on beside the submission."""

    book: Book
    policy: Policy
    settings: Settings
    now: float
    stale: str = ""
    """The reason why the book is too old for a choice of place; empty if it is not."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A submission that was read."""

    submission: Submission
    request: Request
    demand: Demand
    context: Context
    insists: locality.Insistence | None

    def at_any_level(self) -> "_Case":
        """Returns the same case for a job that insists on no level."""
        return replace(self, demand=splits.at(self.demand, "any"))


def decide(submission: Submission, context: Context, understanding: Understanding | None = None) -> Decision:
    """Answers a submission."""
    decision = _decide(submission, context, understanding or Understanding())
    reply = decision.reply
    try:
        if reply.guest:
            _check_texts(_longest_seat(reply, context.book), submission)
        elif reply.verb == "place":
            _check_texts(reply, submission)
    except TooLong as problem:
        # A guest left to Slurm would get a GPU of its own, which its tier may not allow.
        decision = say_no(submission, Never(str(problem), 412) if reply.guest else problem, context.now)
    return with_preflight(decision, submission)


def with_preflight(decision: Decision, submission: Submission) -> Decision:
    """Returns the decision with the job's pre-flight in its plan, where it has one."""
    plan = decision.reply.plan
    if not (submission.preflight and plan and preflight_mark.is_value(submission.preflight)):
        return decision
    marked = plan.having(fields.PREFLIGHT(submission.preflight))
    return decision if marked.too_long else replace(decision, reply=replace(decision.reply, plan=marked))


def _longest_seat(reply: Reply, book: Book) -> Reply:
    """Returns the reply with the longest values that a guest's Extra may have to hold on any later seat."""
    name = max(book.fleet.names, key=len, default="")
    return replace(reply, nodes=(name,), gpus=(63,), seats=False, share=100, gpu_mem=1 << 24, way="time")


def _check_texts(reply: Reply, submission: Submission) -> None:
    asked = submission.flags.get("gpu-share", "")
    pin_text.check(reply, submission.extra_bytes, asked, batch=submission.batch)


def _decide(submission: Submission, context: Context, understanding: Understanding) -> Decision:
    try:
        if submission.wrong is not None:
            raise submission.wrong
        known = understanding.of(submission, context.book.fleet)
        case = _case(submission, known.request, _users(known.demand, submission, context), context)
        demand = case.demand
        if demand.tier.name == OPPORTUNISTIC:
            if guest := _as_guest(case):
                return guest
            case = replace(case, demand=replace(demand, tier=replace(demand.tier, name=EXCLUSIVE)))
        decision = _place(case)
        starts = decision.reply.plan.get(fields.STATE) == fields.PLACED
        if context.book.cluster.rooms and not (context.stale or case.request.later):
            left = _by_reservation(case, starts=starts)
            # A reservation draws jobs by their user, and each takes of its room.
            decision = replace(left or decision, holds_for="one")
            starts |= left is not None
        # Each task of an array starts on several nodes in the planner's passes.
        if case.demand.spread is None or context.stale or case.request.later or starts or case.request.array:
            return decision
        return _on_several_nodes(case) or decision
    except (Answer, FormatError) as answer:
        return say_no(submission, answer, context.now)


def _users(demand: Demand, submission: Submission, context: Context) -> Demand:
    """Returns the demand as that of this job's user, on whom hosts, guests and packed jobs depend."""
    if demand.share is not None:
        sharing, mate = context.book.fleet.sharing, (submission.uid, submission.name)
        picky = context.book.cluster.neighbours is not None and sharing.company_wait > 0
        share = replace(
            demand.share, party=party(submission.uid, sharing), mate=mate, foes=foes_of(mate, sharing), picky=picky
        )
        return replace(demand, share=share)
    return demand if demand.tier is ALONE else replace(demand, user=submission.uid)


def _case(submission: Submission, request: Request, demand: Demand, context: Context) -> _Case:
    return _Case(
        submission, request, demand, context, _insistence(request, demand, context.book.fleet, context.settings)
    )


def only_watch(decision: Decision) -> Decision:
    """Returns the decision for a site that only watches: the place is noted in the plan, and Slurm chooses."""
    reply = decision.reply
    if reply.verb == "pass" and reply.plan.get(fields.STATE) != fields.LATER:
        return Decision(replace(reply, message="", urgent=False, licenses=""))
    if reply.verb == "refuse":
        return decision
    plan = reply.plan.without(fields.OTHERS).having(fields.STATE(fields.OBSERVED))
    return Decision(Reply("pass", reply.nonce, plan=plan))


def say_no(submission: Submission, answer: Exception, now: float) -> Decision:
    """Returns the reply without a place: left to Slurm, or refused if a Berth flag can never be met or is wrong."""
    nonce, flags, reason = submission.nonce, submission.flags, str(answer)
    if submission.wrong_flag:
        return Decision(Reply("refuse", nonce, message.line(str(submission.wrong), WRONG_FLAG)))
    message_id = _number_of(answer)
    if isinstance(answer, Never):
        return Decision(Reply("refuse", nonce, message.line(reason, message_id)))
    urgent = isinstance(answer, Impossible)
    plan = JobPlan.of(
        fields.STATE(fields.PASSED),
        fields.ID(nonce),
        fields.AT(int(now)),
        fields.WHY(tagged(reason, message_id)),
        *(flag(name)(value) for name, value in flags.items()),
    )
    notes = message.notes(flags)
    for name in ("locality", "gpu-share", "gpu-tier"):
        if name in flags:
            notes.insert(0, f"--{name}: not acted on")
    told = message.line(reason if urgent else f"left to Slurm: {reason}", message_id, notes)
    return Decision(Reply("pass", nonce, told, plan, urgent=urgent))


WRONG_FLAG, TOO_LONG, NOT_READ, STALE, ON_SEVERAL_NODES = 401, 212, 224, 214, 225
"""Numbers of messages about a flag, a text and a request."""


def _number_of(answer: Exception) -> int:
    """Returns the number of the message about a request; errors have numbers of their own for other readers."""
    if isinstance(answer, TooLong):
        return TOO_LONG
    return answer.number if isinstance(answer, Answer) else NOT_READ


def _place(case: _Case) -> Decision:
    submission, request, context, insists = case.submission, case.request, case.context, case.insists
    book, settings, policy = context.book, context.settings, context.policy
    wide = splits.at(case.demand, "any")
    demand = wide if insists is None else splits.at(case.demand, insists.level)
    if demand.level == "nvlink" and (never := _never_on_any_split(request, demand, book)):
        if request.locality is not None:
            raise Never(never, 404)
        # The site's rule applies only to jobs that can meet it; only a user's own flag can be refused.
        insists, demand = None, wide
    case = replace(case, demand=wide, insists=insists)
    if submission.gpus is not None and submission.gpus != demand.n * demand.k:
        raise LeftToSlurm(f"{demand.n} x {demand.k} GPUs are not the {submission.gpus} that the request counts", 206)
    if context.stale:
        return _later(case, LeftToSlurm(context.stale, STALE))
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
            return _later(case, nothing)
    case = replace(case, demand=wide.on(len(berth.nodes)))
    start = max(start, float(submission.begin) if submission.begin > context.now else 0.0)
    return _pinned(case, berth, start, nothing_in_sight)


def _pinned(case: _Case, berth: Berth, start: float, nothing_in_sight: NotNow | None) -> Decision:
    """Returns the reply with a place that is free at `start`, 0 for now, or with one that is not in sight."""
    submission, request, demand, context = case.submission, case.request, case.demand, case.context
    waits = bool(start or request.later or nothing_in_sight)
    packed = not waits and context.book.takes_part(demand, berth.nodes, berth.mask)
    plan = place_values(submission.nonce, request, demand, berth, start, context.now, case.insists, packed=packed)
    excluded = _excluded(case, berth)
    plan = plan.having(fields.OTHERS(mark_of(excluded) if excluded else None))
    if demand.n > MOST_NODES or (demand.n > _FEW_NODES and plan.too_long):
        raise LeftToSlurm(f"a place on {demand.n} nodes is too long to be written into the job", TOO_LONG)
    if nothing_in_sight:
        why = tagged(nothing_in_sight, nothing_in_sight.number)
        plan = plan.having(fields.STATE(fields.WAITING), fields.WHY(why))
        message_id = nothing_in_sight.number
        text = f"waits for {message.place(berth, demand.share)}, or what comes before: {nothing_in_sight}"
    elif start:
        text = message.waiting(berth, demand, start - int(context.now), case.insists)
        message_id = 102
    else:
        text = message.placed(berth, demand.share) + (", if still free when the job may start" if request.later else "")
        message_id = 101
    if submission.test:
        # The full reason is only for a request that asks and does not submit.
        text += f"; {berth.why}"
    reply = Reply(
        "place",
        submission.nonce,
        message.line(text, message_id, [*_host_notes(demand), *message.notes_of(request, context.settings)]),
        plan,
        berth.names,
        berth.gpus,
        seats=plan[fields.SEATS],
        excluded=excluded,
        licenses=_counted(context.book.fleet, demand, berth),
    )
    if packed and demand.share:
        reply = share_on_the_node(reply, demand.share, berth)
    elif demand.tier.name == GUARANTEED:
        reply = replace(reply, way=demand.host_way, gpu_mem=demand.gpu_mem)
    claim = None
    if not (request.later or submission.test or nothing_in_sight):
        # Free GPUs are claimed at once: the next request is answered from the same picture.
        claim = claim_on(context.book.fleet, demand, berth.nodes, berth.mask, start or context.book.cluster.at)
    return Decision(_given(reply, demand), claim, _holds_for(request, demand, free_now=not (start or nothing_in_sight)))


def _counted(fleet: Fleet, demand: Demand, berth: Berth) -> str:
    """Returns the licences that count whole GPUs by model."""
    found = fleet.licences(berth.names, demand.k) if demand.share is None else {}
    return counted.text(found) if found else ""


def _excluded(case: _Case, berth: Berth) -> str:
    """Returns the list of all other nodes, where the job excludes these."""
    request, fleet = case.request, case.context.book.fleet
    # Slurm does not test a job that may not start yet; it gets its list when it may (daemon/write/lists.py).
    if request.later or case.submission.excludes or not case.context.settings.excludes_others(len(fleet.names)):
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


def _on_several_nodes(case: _Case) -> Decision | None:
    """Returns the reply for a job that Slurm starts now on several nodes as it likes; None if it has no room there."""
    demand, context, insists = case.demand, case.context, case.insists
    needs = demand.spread
    if needs is None or (insists is not None and insists.wait):
        return None
    parts = parts_now(context.book, needs, demand.gpus, demand.limit)
    if not parts or _is_free(demand, context.book, context.policy):
        return None
    said = f"it can start now on {len(parts)} nodes, where Slurm chooses its GPUs"
    if case.request.batch and needs.restores:
        decision = _open(case, LeftToSlurm(said, 107))
    else:
        decision = say_no(case.submission, LeftToSlurm(said, ON_SEVERAL_NODES), context.now)
    if needs.model:
        licences = counted.text(counted.of(needs.model, demand.gpus))
        decision = replace(decision, reply=replace(decision.reply, licenses=licences))
    first, *others = claims_on(needs, parts, context.book.cluster.at, demand.limit)
    return decision if case.submission.test else replace(decision, claim=replace(first, others=tuple(others)))


def _is_free(demand: Demand, book: Book, policy: Policy) -> bool:
    """Tells whether a place is free, and the job waits because it ends sooner on faster GPUs."""
    with suppress(NotNow):
        free_now(demand, lambda one: book.now(one, policy))
        return True
    return False


def _unplaced(case: _Case, why: Answer) -> JobPlan:
    """Returns the plan of a job to which the planner gives a place later."""
    return (
        JobPlan.of(fields.STATE(fields.LATER), fields.ID(case.submission.nonce))
        | demanded(case.request, case.demand)
        | insisted_on(case.insists)
        | JobPlan.of(fields.AT(int(case.context.now)), fields.PINS(0), fields.WHY(tagged(why, why.number)))
        | case.request.said
    )


def _open(case: _Case, why: Answer) -> Decision:
    """Returns the reply for a job that keeps its user's request until the planner gives it a place."""
    told = message.line(str(why), why.number, message.notes_of(case.request, case.context.settings))
    return Decision(Reply("pass", case.submission.nonce, told, _unplaced(case, why).having(fields.OPEN.set)))


def _by_reservation(case: _Case, *, starts: bool) -> Decision | None:
    """Returns the reply for a job that Slurm may start now in a reservation, or beside what that one takes of a node.

    None if there is no room. A job that `starts` now goes in a magnetic reservation alone.
    """
    request, cluster, insists = case.request, case.context.book.cluster, case.insists
    if request.het or case.submission.test or (insists is not None and insists.wait):
        return None
    case = case.at_any_level()
    of_user = case.submission.uid, request.account
    name = reserved.first(cluster.rooms, cluster.typed, case.demand, cluster.at, *of_user, magnetic=starts)
    if not name:
        return None
    why = LeftToSlurm(f"Slurm may start it by reservation {name}, where Slurm chooses its GPUs", 203)
    if request.batch and case.demand.spread is not None and case.demand.spread.restores and not request.array:
        return _open(case, why)
    return _later(case, why)


def _later(case: _Case, why: Answer) -> Decision:
    """Returns the reply for a job without a place in sight; the planner looks for one in each pass."""
    request, demand, settings = case.request, case.demand, case.context.settings
    if not case.submission.batch:
        # srun and salloc use their own request for the first step, and a pin that comes later does not fit that.
        raise LeftToSlurm(str(why), why.number)
    if demand.n > MOST_NODES:
        raise LeftToSlurm(f"a job on {demand.n} nodes is more than can be pinned", TOO_LONG)
    if demand.spread is not None and demand.spread.restores and not (request.array or settings.pin_ahead):
        # No later place would be pinned either, and Slurm may spread it.
        return _open(case, why)
    reply = Reply(
        "later",
        case.submission.nonce,
        message.line(f"no place is in sight yet: {why}", why.number, message.notes_of(request, settings)),
        _unplaced(case, why),
        n=demand.n,
        k=demand.k,
        share=demand.share.percent if demand.share else 0,
    )
    return Decision(_given(reply, demand), holds_for=_holds_for(request, demand, free_now=False))


def _as_guest(case: _Case) -> Decision | None:
    """Returns the reply with a seat for a guest; None if it can have GPUs of its own now, or waits for these."""
    submission, demand, context = case.submission, case.demand, case.context
    base = demanded(case.request, demand) | case.request.said
    if demand.tier.upgrade and not context.stale:
        with suppress(NotNow):
            context.book.now(replace(demand, tier=replace(demand.tier, name=EXCLUSIVE)), context.policy)
            return None
    claim = None
    try:
        reply, claim = on_a_seat(submission, base, demand, context.book, context.now, context.stale)
    except NotNow as nothing:
        if demand.tier.upgrade:
            return None
        reply = parked(submission, base, nothing, context.now)
    return Decision(_given(reply, demand), claim)


def _host_notes(demand: Demand) -> list[str]:
    if demand.tier.name != GUARANTEED:
        return []
    fate = ", at the same time and in one fault domain: its fatal error ends both" if demand.host_way == "mps" else ""
    if demand.tier.mps and not fate:
        fate = ", in turn: under MPS only hosts with one GPU on a node can have one"
    return [f"it may have a guest{fate}"]


def share_on_the_node(reply: Reply, share: Share, berth: Berth) -> Reply:
    """Returns the reply with what the node needs about a packed job: the same numbers that it is planned with.

    The plugin tells the node beside them what was asked, where less than this is counted.
    """
    return replace(reply, share=max(share.percent, berth.percent), gpu_mem=berth.gpu_mem or None, way=share.way)


def _given(reply: Reply, demand: Demand) -> Reply:
    """Returns the reply with CPUs and memory that were requested per GPU, and must now be given as numbers."""
    if demand.min_cpus is demand.min_cpus_per_node is demand.mem_per_node is None:
        return reply
    return replace(
        reply,
        min_cpus=demand.min_cpus,
        min_cpus_per_node=demand.min_cpus_per_node,
        mem_per_node=demand.mem_per_node,
    )


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
