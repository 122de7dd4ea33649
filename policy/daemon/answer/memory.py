# SPDX-License-Identifier: Apache-2.0
"""The memory of the answering process: ready replies, places that it gave, and kinds that were refused.

Ready replies: users submit the same few kinds of jobs over and over, often by the hundred. A reply is reused for each
request that differs only in what belongs to one job, such as its name, until the book changes or the second ends. For
kinds that were asked for lately the reply is made in advance.

Given places: no two jobs get the same place, though Slurm does not show the first job yet. A job that Slurm refuses
after the hook never shows up, and Slurm does not tell berthd. Its place is kept until a reading that is late enough
lacks the job. If several jobs of a user never show up, that user's places are not kept for a while: they are still
given, and Slurm starts the job that comes first. So no user can block places by jobs that Slurm refuses. Slurm would
start two packed jobs that must not meet if both have room; so a few places of packed jobs are kept in any case.

Refused kinds: Slurm keeps a record of a job that it refused, perhaps only because of what Berth wrote into it. The
same user's next jobs of that kind are left to Slurm for a while: it refuses them in its own words, or runs them.
"""

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from policy.cluster.fleet import Fleet
from policy.plan.answer.case import Decision
from policy.plan.ledger.book import Book
from policy.plan.ledger.claims import Claim, renumbered
from policy.request.submission import Submission
from policy.site import log
from policy.site.overview import STALE_AFTER

_BEGINNING = b"berth/1 submit\nnonce="
_NONCE = slice(len(_BEGINNING), len(_BEGINNING) + 16)
_REST = slice(_NONCE.stop, None)
_PARTS = re.compile(rb"\n(uid|name|time_limit)=((?:[!-$&-Z\\^-~]|%[0-9A-F]{2})*)(?=\n)")
_LIMIT = re.compile(rb"0|[1-9][0-9]{0,8}")

_MOST_REQUESTS = 64
"""Requests whose kinds are cached: a loop submits the same request again, with another nonce."""

_MOST_BYTES = 4_096
"""The most bytes of a request whose kind is kept: users who submit by the hundred write less."""

_MOST_READY = 4
"""Kinds whose replies are made in advance: each of them takes a search after each place that was given."""

_LATELY = 2.0
"""Seconds after its last request for which another request of a kind is expected."""

Kind = tuple[bytes, ...]
"""A request without its nonce and the values that belong to one job; their keys are kept, in order."""


class Datagram(NamedTuple):
    """The parts of a request's datagram."""

    kind: Kind
    nonce: bytes
    limit: int | None
    """The job's time limit in seconds; None if it has none."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A reply to all requests of a kind whose time limit is above the first of `limits` and not above the second.

    If `limits` is None, it is the reply to those without a time limit.
    """

    verb: str
    around_nonces: tuple[bytes, ...]
    claim: Claim | None
    state: int
    until: float
    limits: tuple[float, float] | None

    def holds(self, limit: int | None, book: Book, now: float) -> bool:
        """Tells whether this reply is still right for a request of its kind with this time limit."""
        if self.state != book.state or now >= self.until:
            return False
        if self.limits is None or limit is None:
            return self.limits is None and limit is None
        return self.limits[0] < limit <= self.limits[1]

    def claim_of(self, limit: int | None) -> Claim | None:
        """Returns the claim that the reply to a request with this time limit makes."""
        if self.claim is None or limit is None:
            return self.claim
        return self.claim.lasting(limit)


@dataclass(slots=True)
class _Lately:
    """A kind of request: the last one of it, when it came, and whether it had come before."""

    asked: Datagram
    submission: Submission
    at: float
    again: bool
    ready: Ready | None = None
    looked: tuple[int, int] = 0, 0
    """The state of the book and the second when a reply was last made for this kind."""


KEPT_FOR = 10.0
"""Seconds for which a place is kept for a job that Slurm does not show yet; by then it shows all that it took."""

MOST_MISSING = 2
"""The number of jobs that never showed up after which their user's places are not kept."""

NOT_KEPT_FOR = 300.0
"""Seconds for which a missing job counts."""

FEW_SHARES = 8
"""Places for packed jobs that such a user still has kept: Slurm would start two that must not meet."""

MOST, MOST_OF_A_USER = 8_192, 1_024
"""Places kept at a time, in all and of one user: each is claimed again in each new snapshot."""

_MOST_USERS = 1_024
_REMEMBERED = 8
"""Missing jobs of one user that are remembered."""
_LOG_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A claim, its user, and the time at which the place was given."""

    claim: Claim
    uid: str
    given: float


LEFT_FOR = 300.0
"""Seconds for which a refused kind is left to Slurm."""

_SHOWN_WITHIN = 60.0
"""Seconds after the reply within which Slurm's record of a refused job shows up."""

_MOST_REFUSED = 2_048
_OF_ONE_JOB = re.compile(rb"\n(nonce|name|time_limit|begin)=[^\n]*(?=\n)")
_UID = re.compile(rb"\nuid=([0-9]{1,10})\n")


class RefusableKind(NamedTuple):
    """The user of a request, and a digest of the request without what belongs to one job: requests may be long."""

    digest: bytes
    uid: str


def uid_in(datagram: bytes) -> str:
    """Returns the uid in a request; `?` if it has none."""
    uid = _UID.search(datagram)
    return uid[1].decode() if uid else "?"


def _refusable(datagram: bytes) -> RefusableKind:
    """Returns what all requests of a kind from one user have in common."""
    digest = blake2b(_OF_ONE_JOB.sub(b"", datagram), digest_size=16).digest()
    return RefusableKind(digest, uid_in(datagram))


class Given(NamedTuple):
    """A ready reply that was given: its request, its claim and its time."""

    verb: str
    nonce: str
    uid: str
    claim: Claim | None
    at: float


class RequestMemory:
    """Remembers requests by their kinds and by their nonces."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, _Lately] = {}
        """The kind that was asked for last is the last."""
        self._gave: tuple[bytes, Datagram, Ready, float] | None = None
        self._held: dict[str, HeldPlace] = {}
        self._of_user: dict[str, int] = {}
        self._missing: dict[str, dict[str, float]] = {}
        """By uid, the nonces of jobs that never showed up, and the time at which that was seen."""
        self._refusable: dict[str, tuple[RefusableKind, float]] = {}
        """By nonce, the kinds of jobs with a place that Slurm may still refuse."""
        self._left: dict[RefusableKind, float] = {}
        self._said = self._said_refused = 0.0
        self._read = 0.0
        """The time of the last reading."""

    # Ready replies

    def reply_for(self, datagram: bytes, book: Book, now: float) -> bytes | None:
        """Returns the ready reply to a request, or None; call `given` once it is sent."""
        # If no reply is ready, the request need not be taken apart now.
        if not any(lately.ready is not None for lately in self._kinds.values()):
            return None
        asked = asked_by(datagram)
        lately = None if asked is None else self._kinds.get(asked.kind)
        if asked is None or lately is None or lately.ready is None or not lately.ready.holds(asked.limit, book, now):
            return None
        self._gave = datagram, asked, lately.ready, now
        return asked.nonce.join(lately.ready.around_nonces)

    def given(self) -> Given | None:
        """Returns the ready reply that was given last, and forgets it."""
        gave, self._gave = self._gave, None
        if gave is None:
            return None
        datagram, asked, ready, at = gave
        if lately := self._kinds.pop(asked.kind, None):
            lately.at, lately.again = at, True
            self._kinds[asked.kind] = lately
        self.note(nonce := asked.nonce.decode(), datagram, at)
        return Given(ready.verb, nonce, uid_in(datagram), ready.claim_of(asked.limit), at)

    def remember(self, asked: Datagram, submission: Submission, now: float) -> None:
        """Notes a kind without a ready reply; the kind that was not asked for longest may be dropped for it."""
        known = self._kinds.pop(asked.kind, None)
        if known is None and len(self._kinds) >= _MOST_READY:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[asked.kind] = _Lately(asked, submission, now, again=known is not None)

    def keep(self, asked: Datagram, decision: Decision, reply: bytes, book: Book, now: float) -> None:
        """Keeps the reply to a kind; the book must still be as it was when the reply was made."""
        lately = self._kinds.get(asked.kind)
        if lately is None or not lately.again:
            return
        lately.looked = book.state, int(now)
        if decision.holds_for == "one":
            del self._kinds[asked.kind]
        else:
            lately.ready = _ready(asked, decision, reply, book, now)

    def forget(self, asked: Datagram) -> None:
        """Forgets a kind, so that no reply to it is made in advance."""
        self._kinds.pop(asked.kind, None)

    def clear(self) -> None:
        """Drops all ready replies, because the snapshot that they come from is replaced."""
        for lately in self._kinds.values():
            lately.ready, lately.looked = None, (0, 0)

    def expected(self, book: Book, now: float) -> tuple[Datagram, Submission] | None:
        """Returns a kind that is expected again and has had no reply made since the book or the second changed."""
        looked = book.state, int(now)
        for lately in reversed(self._kinds.values()):
            if lately.again and lately.looked != looked and now < lately.at + _LATELY:
                return lately.asked, lately.submission
        return None

    # Given places

    def places(self) -> list[HeldPlace]:
        """Returns the places that are kept, the oldest first."""
        return list(self._held.values())

    def keeps(self, uid: str, now: float, *, packed: bool = False) -> bool:
        """Tells whether a place given to this user would be kept."""
        missing, most = self._missing.get(uid), MOST_OF_A_USER
        if missing and sum(when > now - NOT_KEPT_FOR for when in missing.values()) >= MOST_MISSING:
            most = FEW_SHARES if packed else 0
        return len(self._held) < MOST and self._of_user.get(uid, 0) < most

    def hold(self, nonce: str, uid: str, claim: Claim, now: float) -> None:
        """Keeps the place that was given to a request."""
        self._drop(nonce)
        self._held[nonce] = HeldPlace(claim, uid, now)
        self._of_user[uid] = self._of_user.get(uid, 0) + 1

    def look(self, seen: AbstractSet[str], read: float, now: float, refused: AbstractSet[str] = frozenset()) -> None:
        """Takes in a reading of Slurm made at `read`: drops the places of jobs that it shows, or should show.

        Kinds of jobs that Slurm has `refused` are left to it from now on.
        """
        self._leave_refused(refused, now)
        # What was read before this machine's clock was set back says nothing of places that were given since.
        read = min(read, now)
        if read < self._read:
            self._set_back(read, now)
        self._read = read
        for nonce in seen & self._held.keys():
            self._drop(nonce)
        for uid, nonces in list(self._missing.items()):
            # Slurm took it after all, if late.
            for nonce in [one for one, when in nonces.items() if one in seen or when <= now - NOT_KEPT_FOR]:
                del nonces[nonce]
            if not nonces:
                del self._missing[uid]
        for nonce, held in list(self._held.items()):
            if held.given < read - KEPT_FOR:
                self._drop(nonce)
                self._miss(nonce, held.uid, now)

    def _set_back(self, read: float, now: float) -> None:
        """Sets times that are now in the future to the present, after this machine's clock was set back."""
        for nonce, held in self._held.items():
            claim = held.claim
            if read < claim.start <= self._read:
                # Its GPUs would seem to be free until then.
                claim = claim.lasting(claim.end - claim.start, read)
            self._held[nonce] = replace(held, claim=claim, given=min(held.given, read))
        self._said = min(self._said, now)
        for nonces in self._missing.values():
            nonces.update({nonce: min(when, now) for nonce, when in nonces.items()})

    def renumber(self, old: Fleet, new: Fleet) -> None:
        """Replaces the node numbers of the places by those of another fleet."""
        if old.names == new.names:
            return
        claims = renumbered([held.claim for held in self._held.values()], old, new)
        self._held = {
            nonce: replace(held, claim=claim) for (nonce, held), claim in zip(self._held.items(), claims, strict=True)
        }

    def _drop(self, nonce: str) -> None:
        held = self._held.pop(nonce, None)
        if held is None:
            return
        left = self._of_user[held.uid] - 1
        if left:
            self._of_user[held.uid] = left
        else:
            del self._of_user[held.uid]

    def _miss(self, nonce: str, uid: str, now: float) -> None:
        nonces = self._missing.setdefault(uid, {})
        if len(self._missing) > _MOST_USERS:
            del self._missing[next(iter(self._missing))]
        nonces[nonce] = now
        if len(nonces) > _REMEMBERED:
            del nonces[next(iter(nonces))]
        if len(nonces) >= MOST_MISSING and now - self._said >= _LOG_EVERY:
            self._said = now
            log.error(
                f"jobs of uid {uid} were given places and never came into Slurm's queue; "
                f"that user's next places are not kept for {NOT_KEPT_FOR / 60:.0f} minutes",
                663,
            )

    # Refused kinds

    def note(self, nonce: str, datagram: bytes, now: float) -> None:
        """Notes that a job was given a place; Slurm may refuse the job with it."""
        if len(self._refusable) >= _MOST_REFUSED:
            del self._refusable[next(iter(self._refusable))]
        self._refusable[nonce] = _refusable(datagram), now

    def leaves(self, datagram: bytes, now: float) -> bool:
        """Tells whether a request is of a kind that is left to Slurm."""
        # Most of the time no kind is left to Slurm, and the plugin waits for the reply.
        return bool(self._left) and self._left.get(_refusable(datagram), 0.0) > now

    def _leave_refused(self, refused: AbstractSet[str], now: float) -> None:
        for nonce in refused & self._refusable.keys():
            self._leave(self._refusable.pop(nonce)[0], now)
        while self._refusable and next(iter(self._refusable.values()))[1] < now - _SHOWN_WITHIN:
            del self._refusable[next(iter(self._refusable))]
        if self._left:
            self._left = {kind: until for kind, until in self._left.items() if until > now}

    def _leave(self, kind: RefusableKind, now: float) -> None:
        if len(self._left) < _MOST_REFUSED:
            self._left[kind] = now + LEFT_FOR
        if now - self._said_refused >= _LOG_EVERY:
            self._said_refused = now
            log.error(
                f"Slurm refused a job of uid {kind.uid} with the place that it was given; "
                f"the next of its kind are left to Slurm for {LEFT_FOR / 60:.0f} minutes",
                660,
            )


def asked_by(datagram: bytes) -> Datagram | None:
    """Returns the parts of a request; None if it must be decoded in full."""
    # No regular expression here: between two submissions its code falls out of the processor's caches.
    if len(datagram) > _MOST_BYTES:
        return None
    nonce = datagram[_NONCE]
    of_kind = _kind_of(datagram[_REST]) if datagram.startswith(_BEGINNING) and nonce.isalnum() else None
    return None if of_kind is None else Datagram(of_kind[0], nonce, of_kind[1])


@lru_cache(maxsize=_MOST_REQUESTS)
def _kind_of(rest: bytes) -> tuple[Kind, int | None] | None:
    """Returns the kind of a request and its time limit in seconds, from the text after its nonce."""
    pieces = _PARTS.split(rest)
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
    # The texts of a reply name the second, and no place is chosen from a stale snapshot.
    until = min(float(int(now) + 1), book.cluster.at + STALE_AFTER)
    around = tuple(reply.split(asked.nonce))
    return Ready(decision.reply.verb, around, decision.claim, book.state, until, limits)
