"""Places that Slurm did not take: it refused the job, perhaps only because of what Berth wrote into it.

Nobody tells berthd that a submission was refused, but Slurm keeps a record of it. From then on the next jobs of its
kind from the same user are left to Slurm for a while, which refuses them in its own words, or runs them.
"""

import re
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import NamedTuple

from policy.site import log

LEFT_FOR = 300.0
"""Seconds in which no job of the kind gets a place."""

_KEPT = 60.0
"""Seconds after which a place was taken, or nobody will know any more."""

_MOST = 2_048
_LOG_EVERY = 60.0
_OF_ONE_JOB = re.compile(rb"\n(nonce|name|time_limit|begin)=[^\n]*(?=\n)")
_UID = re.compile(rb"\nuid=([0-9]{1,10})\n")


class RequestKind(NamedTuple):
    """A request without what is one job's alone, as a digest: a user may write long ones."""

    digest: bytes
    uid: str


def uid_in(datagram: bytes) -> str:
    """The user of a request."""
    uid = _UID.search(datagram)
    return uid[1].decode() if uid else "?"


def kind_of(datagram: bytes) -> RequestKind:
    """Cut a request down to what all jobs of its kind share."""
    digest = blake2b(_OF_ONE_JOB.sub(b"", datagram), digest_size=16).digest()
    return RequestKind(digest, uid_in(datagram))


class RefusedPlaces:
    """Remembers the places given of late, and the kinds of jobs that Slurm refused with one."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[RequestKind, float]] = {}
        self._left: dict[RequestKind, float] = {}
        self._said = 0.0

    def given(self, nonce: str, datagram: bytes, now: float) -> None:
        """Note a place."""
        if len(self._given) >= _MOST:
            del self._given[next(iter(self._given))]
        self._given[nonce] = kind_of(datagram), now

    def look(self, refused: AbstractSet[str], now: float) -> None:
        """Take in whom Slurm has refused."""
        for nonce in refused & self._given.keys():
            self._leave(self._given.pop(nonce)[0], now)
        while self._given and next(iter(self._given.values()))[1] < now - _KEPT:
            del self._given[next(iter(self._given))]
        if self._left:
            self._left = {kind: until for kind, until in self._left.items() if until > now}

    def leaves(self, datagram: bytes, now: float) -> bool:
        """Tells whether a request is of a kind that is left to Slurm."""
        # Most of the time there is none, and a reply is waited for.
        return bool(self._left) and self._left.get(kind_of(datagram), 0.0) > now

    def _leave(self, kind: RequestKind, now: float) -> None:
        if len(self._left) < _MOST:
            self._left[kind] = now + LEFT_FOR
        if now - self._said >= _LOG_EVERY:
            self._said = now
            log.error(
                f"Slurm refused a job of uid {kind.uid} with the place that it was given; "
                f"the next of its kind are left to Slurm for {LEFT_FOR / 60:.0f} minutes",
                660,
            )
