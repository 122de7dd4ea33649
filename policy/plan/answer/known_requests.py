"""A cache of parsed requests: users submit the same few kinds again and again, often by the hundred."""

from dataclasses import dataclass, replace

from policy.cluster.allowed import AllowedNodes
from policy.cluster.fit import on_fleet
from policy.cluster.fleet import Fleet
from policy.request.demand import Demand
from policy.request.parse import Request
from policy.request.submission import Kind, Submission

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
