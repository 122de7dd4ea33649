"""Replies that stand ready: users submit the same few kinds of jobs over and over, often by the hundred.

A reply holds for each request that differs from the one it was made for in nothing but what is one job's alone, until
the book changes or the second ends. For the kinds that were asked for lately it is made before it is asked for.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from policy.plan.answer.decide import Decision
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim
from policy.request.submission import Submission
from policy.site.overview import STALE_AFTER

_BEGINNING = b"berth/1 submit\nnonce="
_NONCE = slice(len(_BEGINNING), len(_BEGINNING) + 16)
_REST = slice(_NONCE.stop, None)
_OF_ONE_JOB = re.compile(rb"\n(uid|name|time_limit)=((?:[!-$&-Z\\^-~]|%[0-9A-F]{2})*)(?=\n)")
_LIMIT = re.compile(rb"0|[1-9][0-9]{0,8}")

_MOST_REQUESTS = 64
"""Requests whose kinds are kept: a loop submits the same again, but for the nonce."""

_MOST_BYTES = 4_096
"""Most bytes of a request whose kind is kept: users who submit by the hundred write less."""

_MOST = 4
"""Kinds that replies are made for before they are asked for: each takes a search after each place that was given."""

_LATELY = 2.0
"""Seconds after which nobody is expected to ask for a kind again."""

Kind = tuple[bytes, ...]
"""A request without what is one job's alone; the keys of that, in their order, are in it too."""


class Datagram(NamedTuple):
    """A datagram, taken apart."""

    kind: Kind
    nonce: bytes
    limit: int | None
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A reply to all requests of a kind whose time limits are above one and up to another; None: to those without."""

    verb: str
    around_nonces: tuple[bytes, ...]
    claim: Claim | None
    state: int
    until: float
    limits: tuple[float, float] | None

    def holds(self, limit: int | None, book: Book, now: float) -> bool:
        """Tells whether it is the right one for a request of its kind."""
        if self.state != book.state or now >= self.until:
            return False
        if self.limits is None or limit is None:
            return self.limits is None and limit is None
        return self.limits[0] < limit <= self.limits[1]

    def to(self, nonce: bytes) -> bytes:
        """The datagram of the reply to one request."""
        return nonce.join(self.around_nonces)

    def claim_of(self, limit: int | None) -> Claim | None:
        """Returns what the reply to a request with this time limit takes."""
        if self.claim is None or limit is None:
            return self.claim
        return self.claim.lasting(limit)


@dataclass(slots=True)
class _Lately:
    """A kind that was asked for: the last request, when, and whether it was one of several."""

    asked: Datagram
    submission: Submission
    at: float
    again: bool
    ready: Ready | None = None
    looked: tuple[int, int] = 0, 0
    """The state of the book, and the second, at the last look for a reply."""


class Shelf:
    """The replies that stand ready."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, _Lately] = {}
        """The one that was asked for last comes last."""

    @property
    def stocked(self) -> bool:
        """Tells whether any reply stands ready; if none does, a request need not be taken apart before its answer."""
        return any(lately.ready is not None for lately in self._kinds.values())

    def find(self, asked: Datagram, book: Book, now: float) -> Ready | None:
        """The reply to a request, where one stands ready."""
        lately = self._kinds.get(asked.kind)
        if lately is None or lately.ready is None or not lately.ready.holds(asked.limit, book, now):
            return None
        return lately.ready

    def used(self, asked: Datagram, now: float) -> None:
        """Note that a reply was of use; apart from `find`, since its asker need not wait for that."""
        if lately := self._kinds.pop(asked.kind, None):
            lately.at, lately.again = now, True
            self._kinds[asked.kind] = lately

    def remember(self, asked: Datagram, submission: Submission, now: float) -> None:
        """Note a kind that no reply stood ready for; of those asked for lately it may be the one too many."""
        known = self._kinds.pop(asked.kind, None)
        if known is None and len(self._kinds) >= _MOST:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[asked.kind] = _Lately(asked, submission, now, again=known is not None)

    def keep(self, asked: Datagram, decision: Decision, reply: bytes, book: Book, now: float) -> None:
        """Let the reply to a kind stand ready; the book is still as it was when the reply was made."""
        lately = self._kinds.get(asked.kind)
        if lately is None or not lately.again:
            return
        lately.looked = book.state, int(now)
        if decision.holds_for == "one":
            del self._kinds[asked.kind]
        else:
            lately.ready = _ready(asked, decision, reply, book, now)

    def forget(self, asked: Datagram) -> None:
        """Have no reply to a kind made before it is asked for."""
        self._kinds.pop(asked.kind, None)

    def clear(self) -> None:
        """Let no reply stand ready, for what they were made by has changed."""
        for lately in self._kinds.values():
            lately.ready, lately.looked = None, (0, 0)

    def expected(self, book: Book, now: float) -> tuple[Datagram, Submission] | None:
        """A kind that will be asked for again, and for which nobody has looked since the book or the second changed."""
        looked = book.state, int(now)
        for lately in reversed(self._kinds.values()):
            if lately.again and lately.looked != looked and now < lately.at + _LATELY:
                return lately.asked, lately.submission
        return None


def asked_by(datagram: bytes) -> Datagram | None:
    """The kind of a request; None where it has to be looked at more closely."""
    # Nothing of a regular expression is in the processor's caches any more between two submissions.
    if len(datagram) > _MOST_BYTES:
        return None
    nonce = datagram[_NONCE]
    of_kind = _kind_of(datagram[_REST]) if datagram.startswith(_BEGINNING) and nonce.isalnum() else None
    return None if of_kind is None else Datagram(of_kind[0], nonce, of_kind[1])


@lru_cache(maxsize=_MOST_REQUESTS)
def _kind_of(rest: bytes) -> tuple[Kind, int | None] | None:
    """The kind of a request and its time limit, by all that comes after the nonce."""
    pieces = _OF_ONE_JOB.split(rest)
    limit = dict(zip(pieces[1::3], pieces[2::3], strict=True)).get(b"time_limit")
    if not (rest.startswith(b"\n") and (limit is None or _LIMIT.fullmatch(limit))):
        return None
    del pieces[2::3]
    return tuple(pieces), None if limit is None else int(limit) * 60


def _ready(asked: Datagram, decision: Decision, reply: bytes, book: Book, now: float) -> Ready:
    limits = None
    if asked.limit is not None:
        others = decision.holds_for == "any limit"
        limits = book.cluster.limits_like(asked.limit) if others else (asked.limit - 1.0, float(asked.limit))
    # Its texts tell the second, and a picture that is too old by then is none to choose a place by.
    until = min(float(int(now) + 1), book.cluster.at + STALE_AFTER)
    around = tuple(reply.split(asked.nonce))
    return Ready(decision.reply.verb, around, decision.claim, book.state, until, limits)
