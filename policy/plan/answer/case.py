# SPDX-License-Identifier: Apache-2.0
"""A submission that is to be decided, with all that its decision depends on, and the decision.

What a request means on a fleet is cached: users submit the same few kinds again and again, often by the hundred.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from policy.cluster.allowed import AllowedNodes
from policy.cluster.fit import on_fleet
from policy.cluster.fleet import Fleet
from policy.formats.reply import Reply
from policy.placement.base import Policy
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim
from policy.request import locality
from policy.request.demand import Demand
from policy.request.settings import Settings
from policy.request.share import foes_of, party
from policy.request.submission import Kind, Request, Submission
from policy.request.tiers import ALONE

HoldsFor = Literal["one", "kind", "any limit"]

_MOST_BYTES = 8 << 20
"""Approximate limit of the cache, so that a flow of new kinds does not make berthd grow."""

_BYTES_OF_ANY = 4_096
_MOST_ONCE = 4_096


@dataclass(frozen=True, slots=True)
class Known:
    """A kind of request, and its demand."""

    request: Request
    demand: Demand

    def lasting(self, limit: int) -> "Known":
        """Returns the same kind with another time limit."""
        return Known(replace(self.request, limit=limit), self.demand.lasting(limit))


class Understanding:
    """Caches the demands of requests on a fleet, from the second request of a kind on.

    So requests that are all different leave nothing but a number each.
    """

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._known: dict[tuple[Kind, int | None], Known] = {}
        self._of_any_limit: dict[Kind, Known] = {}
        self._once: dict[int, None] = {}
        """Hashes of kinds that came once, the oldest first."""
        self._bytes = 0
        self._allowed: AllowedNodes | None = None

    def of(self, submission: Submission, fleet: Fleet) -> Known:
        """Returns the kind of a submission on this fleet, cached or new; LeftToSlurm and Never pass through."""
        if fleet is not self._fleet:
            self._forget_all(fleet)
        kind, limit = submission.kind, submission.minutes
        known = self._known.get((kind, limit))
        if known is None:
            other = self._of_any_limit.get(kind) if limit is not None else None
            known = self._read(submission, fleet) if other is None or limit is None else other.lasting(limit * 60)
            if self._is_new(hash(kind)):
                return known
            size = _bytes_of(submission, known)
            if size > _MOST_BYTES // 64:
                return known
            if self._bytes + size > _MOST_BYTES:
                self._forget_all(fleet)
            self._bytes += size
            self._known[kind, limit] = known
            if limit is not None and "," not in (submission.partition or ""):
                # With several partitions the limit decides which may start it.
                self._of_any_limit[kind] = known
        return known

    def _is_new(self, kind: int) -> bool:
        new = kind not in self._once
        self._once[kind] = None
        if len(self._once) > _MOST_ONCE:
            del self._once[next(iter(self._once))]
        return new

    def _forget_all(self, fleet: Fleet) -> None:
        if self._allowed is None or self._allowed.fleet is not fleet:
            self._allowed = AllowedNodes(fleet)
        self._fleet, self._known, self._of_any_limit, self._bytes = fleet, {}, {}, 0

    def _read(self, submission: Submission, fleet: Fleet) -> Known:
        request = submission.request()
        assert self._allowed is not None, "a fleet was given"  # noqa: S101 - narrows the type
        demand = on_fleet(request, fleet, self._allowed)
        if request.only or request.excluded:
            # The demand already has the nodes, and lists of names may be long.
            request = replace(request, only=(), excluded=())
        return Known(request, demand)


def _bytes_of(submission: Submission, known: Known) -> int:
    return (
        _BYTES_OF_ANY
        + 2 * submission.length
        + known.demand.candidates.nbytes * (1 + len(known.demand.pools) + len(known.demand.splits))
    )


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
    understanding: Understanding = field(default_factory=Understanding)


@dataclass(frozen=True, slots=True)
class Case:
    """A submission that was read."""

    submission: Submission
    request: Request
    demand: Demand
    context: Context
    insists: locality.Insistence | None

    def holds_for(self, *, free_now: bool) -> HoldsFor:
        """Returns the jobs that would get the same reply."""
        demand = self.demand
        if demand.share is not None or demand.tier is not ALONE:
            # For jobs that share GPUs the user matters.
            return "one"
        one_node = demand.n == 1 and not demand.splits
        # With several partitions the limit decides which may start it; on several nodes it may wait for others to end.
        return "any limit" if free_now and one_node and "," not in (self.request.partition or "") else "kind"

    def given(self, reply: Reply) -> Reply:
        """Returns the reply with CPUs and memory that were requested per GPU, and must now be given as numbers."""
        given = self.demand.written
        if given.min_cpus is given.min_cpus_per_node is given.mem_per_node is None:
            return reply
        return replace(
            reply, min_cpus=given.min_cpus, min_cpus_per_node=given.min_cpus_per_node, mem_per_node=given.mem_per_node
        )

    def at_any_level(self) -> "Case":
        """Returns the same case for a job that insists on no level."""
        return replace(self, demand=self.demand.at("any"))


def case_of(submission: Submission, context: Context) -> Case:
    """Reads a submission; LeftToSlurm, Never and FormatError pass through."""
    known = context.understanding.of(submission, context.book.fleet)
    demand = _users(known.demand, submission, context)
    insists = _insistence(known.request, demand, context.book.fleet, context.settings)
    return Case(submission, known.request, demand, context, insists)


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


def _insistence(request: Request, demand: Demand, fleet: Fleet, settings: Settings) -> locality.Insistence | None:
    """Returns the level that a job insists on; None if Slurm's blocks leave no choice."""
    blocks, asked = fleet.fabric.blocks, request.locality
    if asked is None and request.switches is not None and blocks is None and fleet.fabric.at("leaf").any:
        # With a tree of switches Slurm would hold back a job that is pinned to more leaves than it asked for.
        asked = locality.of_switches(request.switches, request.switch_wait, demand.n)
    rules = settings.locality_rules
    if asked is None and not rules:
        return None
    found = locality.settle(asked, demand.gpus, rules, settings.locality_wait, settings.locality_cap)
    bound = blocks is not None and 1 < demand.n <= blocks.sizes[0]
    return None if bound and found is not None and found.level in {"leaf", "pod"} else found
