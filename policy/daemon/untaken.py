"""Places that Slurm did not take: it refused the job, perhaps only because of what Berth wrote into it.

Nobody tells berthd that a submission was refused. But a job that got a place and is in no later reading never came to
be; then the next of its kind from the same user is left to Slurm, which refuses it in its own words or runs it.
"""

import re
from collections.abc import Container

from policy.daemon import log

LEFT_FOR = 300.0
"""Seconds in which no job of the kind gets a place."""

UNTIL = 10.0
"""Seconds after which a job that is in no reading is not going to be in one."""

_MOST = 2_048
_LOG_EVERY = 60.0
_OF_ONE_JOB = re.compile(rb"\n(nonce|name|time_limit|begin)=[^\n]*(?=\n)")
_UID = re.compile(rb"\nuid=([0-9]{1,10})\n")

Kind = bytes
"""A request without what is one job's alone; its user is in it."""


def kind_of(datagram: bytes) -> Kind:
    """What has to be the same."""
    return _OF_ONE_JOB.sub(b"", datagram)


class Untaken:
    """Who was given a place for what, and whose job never came."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[Kind, float]] = {}
        self._left: dict[Kind, float] = {}
        self._said = 0.0

    def given(self, nonce: str, datagram: bytes, now: float) -> None:
        """Note a place."""
        if len(self._given) < _MOST:
            self._given[nonce] = kind_of(datagram), now

    def look(self, seen: Container[str], read_at: float, now: float) -> None:
        """Compare with a reading."""
        for nonce, (kind, at) in list(self._given.items()):
            if nonce in seen:
                del self._given[nonce]
            elif read_at > at + UNTIL:
                del self._given[nonce]
                self._leave(kind, now)
        self._left = {kind: until for kind, until in self._left.items() if until > now}

    def leaves(self, datagram: bytes, now: float) -> bool:
        """Whether a request is of a kind that is left to Slurm."""
        # Most of the time there is none, and a reply is waited for.
        return bool(self._left) and self._left.get(kind_of(datagram), 0.0) > now

    def _leave(self, kind: Kind, now: float) -> None:
        if len(self._left) < _MOST:
            self._left[kind] = now + LEFT_FOR
        if now - self._said >= _LOG_EVERY:
            self._said = now
            uid = _UID.search(kind)
            log.error(
                f"a job of uid {uid[1].decode() if uid else '?'} that was given a place never came: Slurm refused it; "
                f"the next of its kind is left to Slurm for {LEFT_FOR / 60:.0f} minutes"
            )
