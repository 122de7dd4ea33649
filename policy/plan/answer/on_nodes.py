"""The decision on the plain layout: a place names nodes alone, and Slurm chooses the GPUs there.

No job may wait longer than without it. So a job gets nodes only if it can start there now, or needs whole nodes and
several of them: those are free together only if somebody keeps them free.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from policy.cluster.fit import may_wait_pinned
from policy.cluster.fleet import Fleet
from policy.formats import segment
from policy.formats.errors import Answer, FormatError, LeftToSlurm
from policy.formats.excluded_nodes import KEY as OTHERS
from policy.formats.wire import number
from policy.placement.base import Policy
from policy.plan.answer import message
from policy.plan.answer.decide import Decision, decide, say_no
from policy.plan.answer.known_requests import Understanding
from policy.plan.book import Book
from policy.request.demand import Demand
from policy.request.settings import Settings
from policy.request.tiers import ALONE

LEFT = 217
"""Number of the message about a job whose nodes Slurm chooses too."""

_BY_MODEL = re.compile(r"(gres/gpu)[:=]([A-Za-z0-9_.\-]*[A-Za-z_.\-][A-Za-z0-9_.\-]*)((?:[:=][0-9]{1,6})?)")
_SLURMS_OWN = (
    ("req_nodes", "its user names the nodes"),
    ("array", "the tasks of an array start apart"),
    ("het", "the parts of a heterogeneous job are settled together"),
    ("flag.gpu-share", "GPUs have no parts on the plain layout"),
    ("flag.gpu-tier", "GPUs have no seats on the plain layout"),
)


def decide_nodes(
    fields: Mapping[str, str],
    book: Book,
    policy: Policy,
    settings: Settings,
    now: float,
    understanding: Understanding,
    stale: str = "",
) -> Decision:
    """Answers a submit request with nodes, or leaves the job to Slurm; it refuses nothing but a wrong flag."""
    try:
        asked, model = _without_model(fields)
        _check(asked)
        demand = understanding.of(asked, book.fleet).demand
        if demand.tier is not ALONE or demand.share is not None or demand.guest_after is not None:
            raise LeftToSlurm("tiers and shares need the exact layout", LEFT)
        if demand.splits:
            raise LeftToSlurm("its number of nodes is Slurm's to settle; say -N", LEFT)
        if not model and _several_models(demand, book.fleet):
            raise LeftToSlurm("nodes with several GPU models could hold it; name one", LEFT)
    except (Answer, FormatError) as answer:
        return _left(fields, answer, now)
    waits = may_wait_pinned(demand, book.fleet)
    decision = decide(
        asked, book, policy, replace(settings, pin_ahead=settings.pin_ahead and waits), now, understanding, stale
    )
    if decision.verb == "refuse":
        return _left(fields, LeftToSlurm("no GPUs here are as its flags ask for", LEFT), now)
    values = segment.fields(f"[berth/1 {decision.fields.get('segment', '')}]") or {}
    starts_now = values.get("state") == "placed" and asked.keys().isdisjoint(("held", "begin", "dependency"))
    if decision.verb == "pass":
        return _without(decision)
    if not (starts_now or waits):
        return _left(fields, LeftToSlurm("no node can start it now", LEFT), now)
    values.pop(OTHERS, None)
    values |= {segment.LAYOUT: segment.PLAIN, **({"model": model} if model else {})}
    told = {
        "nonce": fields["nonce"],
        **({"nodes": values["nodes"]} if "nodes" in values else {}),
        "segment": segment.body(values),
        "message": message.on_nodes(values, now) if "nodes" in values else decision.fields["message"],
    }
    return Decision("pass", told, decision.claim)


def _several_models(demand: Demand, fleet: Fleet) -> bool:
    """Tells whether another node could mean another bill, or another limit, than Slurm's choice."""
    return len({fleet.models[place] for place in np.flatnonzero(demand.candidates).tolist()}) > 1


def _without_model(fields: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Returns the request as if its GPU model were a feature, as the nodes of a plain layout have it, and the model."""
    changed, models = dict(fields), set()
    for key in ("tres_per_job", "tres_per_node", "tres_per_task"):
        if match := _BY_MODEL.fullmatch(fields.get(key, "")):
            changed[key] = match[1] + match[3]
            models.add(match[2])
    if len(models) > 1:
        raise LeftToSlurm("it names several GPU models", LEFT)
    model = next(iter(models), "")
    if model:
        changed["features"] = "&".join(filter(None, (fields.get("features", ""), model)))
    return changed, model


def _check(fields: Mapping[str, str]) -> None:
    """Raises for a job whose nodes are not one fixed number of nodes, of Slurm's choice so far."""
    for key, why in _SLURMS_OWN:
        if key in fields:
            raise LeftToSlurm(why, LEFT)
    one_node = (number(fields, "min_nodes") or 1) == 1 and (number(fields, "num_tasks") or 1) == 1
    if not (number(fields, "max_nodes") or one_node):
        raise LeftToSlurm("its number of nodes is Slurm's to settle; say -N", LEFT)
    if "tres_per_job" in fields and not number(fields, "max_nodes"):
        raise LeftToSlurm("Slurm may spread its GPUs over nodes; say -N", LEFT)


def _left(fields: Mapping[str, str], answer: Exception, now: float) -> Decision:
    return _without(say_no(fields, answer if isinstance(answer, LeftToSlurm) else _mild(answer), now))


def _mild(answer: Exception) -> Exception:
    """Returns the reason of an answer that would refuse the job: nothing is refused that Slurm takes."""
    return LeftToSlurm(str(answer), LEFT) if isinstance(answer, Answer) else answer


def _without(decision: Decision) -> Decision:
    """Returns the decision without what makes Slurm's own refusal louder: the user reads Slurm's words for it."""
    return replace(decision, fields={key: value for key, value in decision.fields.items() if key != "urgent"})
