# SPDX-License-Identifier: Apache-2.0
"""Replies to jobs without a place of Berth's: left to Slurm, to be placed later, or refused."""

from contextlib import suppress
from dataclasses import replace

from policy.cluster import reserved
from policy.formats import plan_fields as fields
from policy.formats.errors import Answer, Impossible, InSegments, LeftToSlurm, Never, NotNow, TooLong
from policy.formats.job_plan import JobPlan, flag
from policy.formats.messages import tagged
from policy.formats.reply import Reply
from policy.placement.base import Policy
from policy.plan.answer import told
from policy.plan.answer.case import Case, Decision
from policy.plan.ledger.book import Book
from policy.plan.ledger.places import free_now
from policy.plan.opinions.spreading import claims_on, parts_now
from policy.request import counted
from policy.request.demand import Demand
from policy.request.submission import Submission

WRONG_FLAG, TOO_LONG, NOT_READ, STALE, ON_SEVERAL_NODES = 401, 212, 224, 214, 225
"""Numbers of messages about a flag, a text and a request."""

MOST_NODES = 1_024


def say_no(submission: Submission, answer: Exception, now: float) -> Decision:
    """Returns the reply without a place: left to Slurm, or refused if a Berth flag can never be met or is wrong."""
    nonce, flags, reason = submission.nonce, submission.flags, str(answer)
    if submission.wrong_flag:
        return Decision(Reply("refuse", nonce, told.line(str(submission.wrong), WRONG_FLAG)))
    message_id = _number_of(answer)
    if isinstance(answer, Never):
        return Decision(Reply("refuse", nonce, told.line(reason, message_id)))
    urgent = isinstance(answer, Impossible)
    plan = JobPlan.of(
        fields.STATE(fields.PASSED),
        fields.ID(nonce),
        fields.AT(int(now)),
        fields.WHY(tagged(reason, message_id)),
        *(flag(name)(value) for name, value in flags.items()),
    )
    notes = told.notes(flags)
    size = answer.nodes if isinstance(answer, InSegments) else 0
    for name in ("locality", "gpu-share", "gpu-tier"):
        if name in flags:
            notes.insert(0, f"--{name}: not acted on")
    line = told.line(reason if urgent else f"left to Slurm: {reason}", message_id, notes)
    return Decision(Reply("pass", nonce, line, plan, urgent=urgent, segment_size=size))


def _number_of(answer: Exception) -> int:
    """Returns the number of the message about a request; errors have numbers of their own for other readers."""
    if isinstance(answer, TooLong):
        return TOO_LONG
    return answer.number if isinstance(answer, Answer) else NOT_READ


def only_watch(decision: Decision) -> Decision:
    """Returns the decision for a site that only watches: the place is noted in the plan, and Slurm chooses."""
    reply = decision.reply
    if reply.verb == "pass" and reply.plan.get(fields.STATE) != fields.LATER:
        return Decision(replace(reply, message="", urgent=False, licenses="", segment_size=0))
    if reply.verb == "refuse":
        return decision
    plan = reply.plan.without(fields.OTHERS).having(fields.STATE(fields.OBSERVED))
    return Decision(Reply("pass", reply.nonce, plan=plan))


def on_several_nodes(case: Case) -> Decision | None:
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


def by_reservation(case: Case, *, starts: bool) -> Decision | None:
    """Returns the reply for a job that Slurm may start now in a reservation, or on the rest of a reserved node.

    None if there is no room. A job that `starts` now goes only into a magnetic reservation.
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
    return later(case, why)


def later(case: Case, why: Answer) -> Decision:
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
        told.line(f"no place is in sight yet: {why}", why.number, told.notes_of(request, settings)),
        _unplaced(case, why),
        n=demand.n,
        k=demand.k,
        share=demand.share.percent if demand.share else 0,
    )
    return Decision(case.given(reply), holds_for=case.holds_for(free_now=False))


def _open(case: Case, why: Answer) -> Decision:
    """Returns the reply for a job that keeps its user's request until the planner gives it a place."""
    line = told.line(str(why), why.number, told.notes_of(case.request, case.context.settings))
    return Decision(Reply("pass", case.submission.nonce, line, _unplaced(case, why).having(fields.OPEN.set)))


def _unplaced(case: Case, why: Answer) -> JobPlan:
    """Returns the plan of a job to which the planner gives a place later."""
    return (
        JobPlan.of(fields.STATE(fields.LATER), fields.ID(case.submission.nonce))
        | told.demanded(case.request, case.demand)
        | told.insisted_on(case.insists)
        | JobPlan.of(fields.AT(int(case.context.now)), fields.PINS(0), fields.WHY(tagged(why, why.number)))
        | case.request.said
    )
