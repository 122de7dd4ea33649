# SPDX-License-Identifier: Apache-2.0
"""The decision on the plain layout: a place names nodes alone, and Slurm chooses the GPUs there.

No job may wait longer than without it. So a job gets nodes only if it can start there now, or needs whole nodes and
several of them: those are free together only if Berth keeps them free.
"""

from dataclasses import replace

import numpy as np

from policy.cluster.fit import may_wait_pinned
from policy.cluster.fleet import Fleet
from policy.formats import plan_fields as fields
from policy.formats.errors import Answer, FormatError, LeftToSlurm
from policy.formats.reply import Reply
from policy.plan.answer import told
from policy.plan.answer.case import Context, Decision
from policy.plan.answer.decide import decide
from policy.plan.answer.left import say_no
from policy.request.demand import Demand
from policy.request.nodes_alone import LEFT, without_model
from policy.request.submission import Submission
from policy.request.tiers import ALONE


def decide_nodes(submission: Submission, context: Context) -> Decision:
    """Answers a submission with nodes, or leaves the job to Slurm; it refuses nothing but a wrong flag."""
    fleet = context.book.fleet
    try:
        if submission.wrong is not None:
            raise submission.wrong
        asked, model = without_model(submission)
        demand = context.understanding.of(asked, fleet).demand
        if demand.tier is not ALONE or demand.share is not None or demand.written.guest_after is not None:
            raise LeftToSlurm("tiers and shares need the exact layout", LEFT)
        if demand.splits:
            raise LeftToSlurm("its number of nodes is Slurm's to settle; say -N", LEFT)
        if not model and _several_models(demand, fleet):
            raise LeftToSlurm("nodes with several GPU models could hold it; name one", LEFT)
    except (Answer, FormatError) as answer:
        return _left(submission, answer, context.now)
    waits = may_wait_pinned(demand, fleet)
    settings = replace(context.settings, pin_ahead=context.settings.pin_ahead and waits)
    decision = decide(asked, replace(context, settings=settings))
    reply = decision.reply
    if reply.verb == "refuse":
        return _left(submission, LeftToSlurm("no GPUs here are as its flags ask for", LEFT), context.now)
    if reply.verb == "pass":
        return _without(decision)
    starts_now = reply.plan.get(fields.STATE) == fields.PLACED and not (submission.waits or submission.later)
    if not (starts_now or waits):
        return _left(submission, LeftToSlurm("no node can start it now", LEFT), context.now)
    plan = reply.plan.without(fields.OTHERS).having(fields.LAYOUT(fields.PLAIN), fields.MODEL(model or None))
    line = told.on_nodes(plan, context.now) if reply.nodes else reply.message
    return Decision(Reply("pass", reply.nonce, line, plan, reply.nodes), decision.claim)


def _several_models(demand: Demand, fleet: Fleet) -> bool:
    """Tells whether another node could mean another bill, or another limit, than Slurm's choice."""
    return len({fleet.models[place] for place in np.flatnonzero(demand.candidates).tolist()}) > 1


def _left(submission: Submission, answer: Exception, now: float) -> Decision:
    return _without(say_no(submission, answer if isinstance(answer, LeftToSlurm) else _mild(answer), now))


def _mild(answer: Exception) -> Exception:
    """Returns the reason of an answer that would refuse the job: nothing is refused that Slurm takes."""
    return LeftToSlurm(str(answer), LEFT) if isinstance(answer, Answer) else answer


def _without(decision: Decision) -> Decision:
    """Returns the decision without what makes Slurm's own refusal louder: the user reads Slurm's words for it."""
    return replace(decision, reply=replace(decision.reply, urgent=False))
