# SPDX-License-Identifier: Apache-2.0
"""The decision: turns a submission into a reply. It is a pure step, used by berthd and all other callers."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from policy.cluster import segments, unmet
from policy.cluster.fleet import Fleet
from policy.cluster.partitions import not_skipped, others
from policy.formats import plan_fields as fields
from policy.formats.errors import Answer, FormatError, InSegments, LeftToSlurm, Never, NotNow, OutOfTime, TooLong
from policy.formats.messages import tagged
from policy.formats.reply import Reply
from policy.formats.slurm_syntax import pin_text
from policy.formats.slurm_syntax.excluded_nodes import mark_of
from policy.placement.base import Berth, Policy
from policy.plan.answer import told
from policy.plan.answer.case import Case, Context, Decision, case_of
from policy.plan.answer.guest import as_guest
from policy.plan.answer.left import MOST_NODES, STALE, TOO_LONG, by_reservation, later, on_several_nodes, say_no
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import claim_on
from policy.plan.ledger.later_places import LaterPlace, first_place
from policy.plan.ledger.places import free_now
from policy.plan.opinions.splitting import first_of_splits
from policy.request import counted, locality, node_range
from policy.request.demand import A_YEAR, ELSEWHERE, Demand
from policy.request.settings import Settings
from policy.request.submission import WAS_KEYS, Submission
from policy.request.tiers import ALONE, EXCLUSIVE, GUARANTEED, OPPORTUNISTIC, settle

_FEW_NODES = 16
"""Nodes whose names are surely no longer than a job's record takes."""


def decide(submission: Submission, context: Context) -> Decision:
    """Answers a submission."""
    decision = _decide(submission, context)
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
    if not (submission.preflight and plan and fields.marks_preflight(submission.preflight)):
        return decision
    marked = plan.having(fields.PREFLIGHT(submission.preflight))
    return decision if marked.too_long else replace(decision, reply=replace(decision.reply, plan=marked))


def _longest_seat(reply: Reply, book: Book) -> Reply:
    """Returns the reply with the longest values that a guest's Extra may have to hold on any later seat."""
    name = max(book.fleet.names, key=len, default="")
    return replace(reply, nodes=(name,), gpus=(63,), seats=False, share=100, gpu_mem=1 << 24, way="time")


def _check_texts(reply: Reply, submission: Submission) -> None:
    if not reply.surely_fits(submission.extra_bytes):
        asked = submission.flags.get("gpu-share", "")
        pin_text.check(reply, submission.extra_bytes, asked, batch=submission.batch)


def _decide(submission: Submission, context: Context) -> Decision:
    try:
        if submission.wrong is not None:
            raise submission.wrong
        if "max_nodes" in submission.texts and (decision := _in_range(submission, context)):
            return decision
        case = case_of(submission, context)
        demand = case.demand
        if demand.tier.name == OPPORTUNISTIC:
            if guest := as_guest(case):
                return guest
            case = replace(case, demand=replace(demand, tier=replace(demand.tier, name=EXCLUSIVE)))
        decision = _place(case)
        starts = decision.reply.plan.get(fields.STATE) == fields.PLACED
        if context.book.cluster.rooms and not (context.stale or case.request.later):
            left = by_reservation(case, starts=starts)
            # A reservation draws jobs by their user, and each takes of its room.
            decision = replace(left or decision, holds_for="one")
            starts |= left is not None
        # Each task of an array starts on several nodes in the planner's passes.
        if case.demand.spread is None or context.stale or case.request.later or starts or case.request.array:
            return decision
        return on_several_nodes(case) or decision
    except (Answer, FormatError) as answer:
        allowed = _as_rules_allow(answer, submission, context.book.fleet)
        return say_no(submission, _in_segments(allowed, submission, context), context.now)


def _as_rules_allow(answer: Exception, submission: Submission, fleet: Fleet) -> Exception:
    """Returns the answer; a refusal if the site does not allow the job what Slurm would give it: GPUs of its own."""
    default, allowed = fleet.sharing.tier_default, fleet.sharing.tier_allowed
    if isinstance(answer, Never) or not allowed:
        return answer
    qos, share = submission.texts.get("qos", ""), "gpu-share" in submission.flags
    names = not_skipped(fleet, submission.partition or fleet.default_partition or "")
    try:
        tier = settle(submission.flags, qos, names, default, allowed, share=share)
    except Never as never:
        return never
    try:
        settle({}, qos, names, (), allowed, share=share or tier.name == GUARANTEED)
    except Never:
        return Never(f"{answer}; it would have GPUs of its own there, which a rule of the site does not allow it", 403)
    return answer


def _in_range(submission: Submission, context: Context) -> Decision | None:
    """Returns the reply with the number of nodes of a range that Slurm would take now; None to leave it to Slurm."""
    counts = node_range.counts(submission.texts, submission.gpus)
    with suppress(Answer):
        if not counts or context.stale or context.book.cluster.rooms:
            return None
        if isinstance(counts, range):
            most = _free_nodes(_on(counts[0], submission, context))
            counts = (min(counts[-1], most),) if most >= counts[0] else ()
        for case in (_on(n, submission, context) for n in counts):
            if case.insists is None and case.demand.tier is ALONE and not case.demand.may_go_elsewhere:
                decision = _place(case)
                if decision.reply.plan.get(fields.STATE) == fields.PLACED:
                    return replace(decision, holds_for="one")
    return None


def _on(n: int, submission: Submission, context: Context) -> Case:
    """Returns the case of a job with a range as if it named n nodes; its plan keeps the range."""
    was = tuple((key, submission.texts[key]) for key in WAS_KEYS if key in submission.texts)
    nodes = {"min_nodes": str(n), "max_nodes": str(n)}
    case = case_of(replace(submission, texts={**submission.texts, **nodes}), context)
    return replace(case, request=replace(case.request, was=was), demand=replace(case.demand, spread=None))


def _free_nodes(case: Case) -> int:
    """Returns the number of nodes with room for a node's part of the job, whatever GPUs; perhaps too many."""
    demand, view = case.demand, case.context.book.cluster.now(case.demand.limit)
    found = demand.candidates & view.open & (np.bitwise_count(view.free) >= demand.k)
    if case.request.tasks is None:
        # On more nodes each one would run fewer of its tasks.
        found &= (view.cpus >= (demand.cpus or 0)) & (view.mem >= (demand.mem or 0))
    return int(found.sum())


def _in_segments(answer: Exception, submission: Submission, context: Context) -> Exception:
    """Returns the answer; one in segments is fitted to the nodes that are free, for a job that may start now."""
    if not isinstance(answer, InSegments) or context.stale or submission.waits or submission.later:
        return answer
    return segments.fitted(answer, context.book.cluster, (submission.minutes or 0) * 60.0 or A_YEAR)


def _place(case: Case) -> Decision:
    submission, request, context, insists = case.submission, case.request, case.context, case.insists
    book, settings, policy = context.book, context.settings, context.policy
    wide = case.demand.at("any")
    demand = wide if insists is None else case.demand.at(insists.level)
    if demand.level == "nvlink" and (never := unmet.never_on_any_split(request, demand, book.fleet)):
        if request.locality is not None:
            raise Never(never, 404)
        # The site's rule applies only to jobs that can meet it; only a user's own flag can be refused.
        insists, demand = None, wide
    case = replace(case, demand=wide, insists=insists)
    if submission.gpus is not None and submission.gpus != demand.n * demand.k:
        raise LeftToSlurm(f"{demand.n} x {demand.k} GPUs are not the {submission.gpus} that the request counts", 206)
    if context.stale:
        return later(case, LeftToSlurm(context.stale, STALE))
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
            return later(case, nothing)
    case = replace(case, demand=wide.on(len(berth.nodes)))
    start = max(start, float(submission.begin) if submission.begin > context.now else 0.0)
    return _pinned(case, berth, start, nothing_in_sight)


def _pinned(case: Case, berth: Berth, start: float, nothing_in_sight: NotNow | None) -> Decision:
    """Returns the reply with a place that is free at `start`, 0 for now, or with one that is not in sight."""
    submission, request, demand, context = case.submission, case.request, case.demand, case.context
    fleet, share = context.book.fleet, demand.share
    waits = bool(start or request.later or nothing_in_sight)
    packed = not waits and context.book.takes_part(demand, berth.nodes, berth.mask)
    plan = told.place_values(case, berth, start, packed=packed)
    excluded = _excluded(case, berth)
    plan = plan.having(fields.OTHERS(mark_of(excluded) if excluded else None))
    if demand.n > MOST_NODES or (demand.n > _FEW_NODES and plan.too_long):
        raise LeftToSlurm(f"a place on {demand.n} nodes is too long to be written into the job", TOO_LONG)
    if nothing_in_sight:
        why = tagged(nothing_in_sight, nothing_in_sight.number)
        plan = plan.having(fields.STATE(fields.WAITING), fields.WHY(why))
        message_id = nothing_in_sight.number
        text = f"waits for {told.place(berth, share)}, or what comes before: {nothing_in_sight}"
    elif start:
        text = told.waiting(berth, demand, start - int(context.now), case.insists)
        message_id = 102
    else:
        text = told.placed(berth, share) + (", if still free when the job may start" if request.later else "")
        message_id = 101
    if submission.test:
        # The full reason is only for a request that asks and does not submit.
        text += f"; {berth.why}"
    reply = Reply(
        "place",
        submission.nonce,
        told.line(text, message_id, [*_host_notes(demand), *told.notes_of(request, context.settings)]),
        plan,
        berth.names,
        berth.gpus,
        seats=plan[fields.SEATS],
        excluded=excluded,
        licenses=counted.text(fleet.licences(berth.names, demand.k)) if fleet.counted and share is None else "",
    )
    if packed and share:
        # The node is told the same numbers that the job is planned with; the plugin adds what was asked, if it is less.
        percent = max(share.percent, berth.percent)
        reply = replace(reply, share=percent, gpu_mem=berth.gpu_mem or None, way=share.way)
    elif demand.tier.name == GUARANTEED:
        reply = replace(reply, way=demand.host_way, gpu_mem=demand.gpu_mem)
    claim = None
    if not (request.later or submission.test or nothing_in_sight):
        # Free GPUs are claimed at once: the next request is answered from the same snapshot.
        claim = claim_on(fleet, demand, berth.nodes, berth.mask, start or context.book.cluster.at)
    return Decision(case.given(reply), claim, case.holds_for(free_now=not (start or nothing_in_sight)))


def _excluded(case: Case, berth: Berth) -> str:
    """Returns the list of all other nodes, where the job excludes these."""
    request, fleet = case.request, case.context.book.fleet
    # Slurm does not test a job that may not start yet; it gets its list when it may (daemon/write/lists.py).
    excludes = 0 < case.context.settings.exclude_others <= len(fleet.names)
    if request.later or case.submission.excludes or not excludes:
        return ""
    return others(fleet, request.partition or fleet.default_partition or "", berth.names)


def _host_notes(demand: Demand) -> list[str]:
    if demand.tier.name != GUARANTEED:
        return []
    fate = ", at the same time and in one fault domain: its fatal error ends both" if demand.host_way == "mps" else ""
    if demand.tier.mps and not fate:
        fate = ", in turn: under MPS only hosts with one GPU on a node can have one"
    return [f"it may have a guest{fate}"]


def _soonest(
    demand: Demand, wide: Demand, book: Book, policy: Policy, *, relax_at_once: bool, ahead: bool
) -> tuple[Berth, float]:
    try:
        if relax_at_once:
            try:
                return free_now(demand, lambda one: book.now(one, policy)), 0.0
            except NotNow:
                demand = wide
        # Without scores no later place has faster GPUs.
        first = first_place if ahead and book.fleet.scores else _free_first
        return first_of_splits(book, demand, policy, first) if demand.splits else first(book, demand, policy)
    except OutOfTime:
        raise
    except NotNow as nothing:
        if not bool((demand.candidates & book.cluster.up).any()):
            raise NotNow("every node that could hold it is down, drained or reserved", 306) from None
        if few := segments.too_few(demand, book.fleet, book.cluster.up, "up"):
            raise NotNow(few, 306) from None
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
