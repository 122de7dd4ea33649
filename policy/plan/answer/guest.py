# SPDX-License-Identifier: Apache-2.0
"""The answer to a job that wants a seat: the best seat that is free now; else the job is parked until one is free."""

from contextlib import suppress
from dataclasses import replace

from policy.formats import plan_fields as fields
from policy.formats.errors import NotNow
from policy.formats.job_plan import JobPlan
from policy.formats.messages import tagged
from policy.formats.reply import Reply
from policy.plan.answer import told
from policy.plan.answer.case import Case, Decision
from policy.plan.jobs.waiting_jobs import PARKED_FOR
from policy.plan.ledger.claims import Claim, seat_on
from policy.plan.opinions.guests import seats
from policy.request.submission import Submission
from policy.request.tiers import EXCLUSIVE, OPPORTUNISTIC


def as_guest(case: Case) -> Decision | None:
    """Returns the reply with a seat for a guest; None if it can have GPUs of its own now, or waits for these."""
    demand, context = case.demand, case.context
    base = told.demanded(case.request, demand) | case.request.said
    if demand.tier.upgrade and not context.stale:
        with suppress(NotNow):
            context.book.now(replace(demand, tier=replace(demand.tier, name=EXCLUSIVE)), context.policy)
            return None
    claim = None
    try:
        reply, claim = _on_a_seat(case, base)
    except NotNow as nothing:
        if demand.tier.upgrade:
            return None
        reply = _parked(case.submission, base, nothing, context.now)
    return Decision(case.given(reply), claim)


def _on_a_seat(case: Case, base: JobPlan) -> tuple[Reply, Claim | None]:
    """Returns a reply with a seat and its claim, or raises `NotNow`; `base` is what the plan keeps of the request."""
    submission, demand, book, now = case.submission, case.demand, case.context.book, case.context.now
    stale = case.context.stale
    if stale:
        raise NotNow(stale, 214)
    # The planner gives tasks of an array their seats one by one.
    if submission.waits or submission.begin > now:
        raise NotNow("it may not begin yet", 309)
    # If jobs have profiles, the planner chooses the seats beside hosts, since it has these profiles.
    left = seats.Left(book.cluster)
    seat = left.find_idle(demand) if book.fleet.sharing.profiles else left.find(demand)
    berth = seat.berth
    known = JobPlan.of(fields.STATE(fields.PLACED), fields.ID(submission.nonce))
    place = told.berth_values(berth, tier=OPPORTUNISTIC)
    last = JobPlan.of(fields.AT(int(now)), fields.PINS(0), fields.WHY(berth.why))
    plan = known | base | told.seat_values(seat.way) | place | last
    line = told.line(f"guest on {told.place(berth)}, {berth.why}", 103)
    reply = Reply("place", submission.nonce, line, plan, berth.names, berth.gpus, guest=True, way=seat.way)
    claim = None if submission.test else seat_on(demand, berth.nodes[0], berth.mask, book.cluster.at)
    return replace(reply, gpu_mem=demand.gpu_mem), claim


def _parked(submission: Submission, base: JobPlan, why: NotNow, now: float) -> Reply:
    """Returns a reply that parks the job on no node: its begin time holds it back, until berthd gives it a seat."""
    plan = JobPlan.of(fields.STATE(fields.LATER), fields.ID(submission.nonce)) | base
    plan = plan.having(
        fields.TIER(OPPORTUNISTIC),
        fields.PARKED(submission.begin),
        fields.AT(int(now)),
        fields.PINS(0),
        fields.WHY(tagged(why, why.number)),
    )
    line = told.line(f"a guest that waits for a seat: {why}", why.number)
    begin = max(int(now) + PARKED_FOR, submission.begin)
    return Reply("later", submission.nonce, line, plan, n=1, k=1, guest=True, begin=begin)
