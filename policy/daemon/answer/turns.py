# SPDX-License-Identifier: Apache-2.0
"""Chooses whose request is answered next and sends users away for a while, so that none holds up another's requests.

A user's turn comes after those of all users that were answered longer ago. Answers are cheap, but a request can be
written for which a place is hard to find. What an answer takes beyond a usual one is the user's debt, which is paid off
slowly. A user that owes too much is answered `busy`: the plugin does not ask for that user for some seconds. Those jobs
go on as if berthd had not answered, so that the next planning pass finds them a place.
"""

import math
import re
from dataclasses import dataclass

from policy.site import log

USUAL = 0.002
"""Seconds of processor time that any answer may take, on a cluster of up to a thousand nodes."""

_USUAL_PER_NODE = 2e-6

CREDIT = 0.2
"""Seconds beyond the usual ones that a user may have taken: a script that submits two dozen large jobs owes no more."""

PAID_OFF = 0.002
"""Seconds of debt that are paid off in a second: so long, at most, does one user's dear request stand in the way."""

LONGEST = 60
"""Seconds for which a user is sent away at most."""

_MOST = 1_024
_LOG_EVERY = 60.0
_ASKER = re.compile(rb"berth/1 submit\nnonce=([0-9a-f]{16})\nuid=([0-9]{1,10})\n")


def asker(datagram: bytes) -> tuple[str, int] | None:
    """The nonce and the user of a submit request; None for any other datagram."""
    match = _ASKER.match(datagram)
    return None if match is None else (match[1].decode(), int(match[2]))


@dataclass(slots=True)
class _User:
    turn: int
    debt: float
    at: float
    """When that was the debt."""

    def owes(self, now: float) -> float:
        return max(0.0, self.debt - PAID_OFF * (now - self.at))


class Turns:
    """Remembers when each user was answered and what the answers took; times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._users: dict[int, _User] = {}
        """Users in the order of their turns; the one answered last comes last."""
        self._turn = 0
        self._said = -math.inf
        self.usual = USUAL

    def nodes(self, count: int) -> None:
        """On a larger cluster any answer takes longer."""
        self.usual = max(USUAL, _USUAL_PER_NODE * count)

    def of(self, uid: int) -> int:
        """Orders users: the least of them is next."""
        user = self._users.get(uid)
        return 0 if user is None else user.turn

    def sent_away(self, uid: int, now: float) -> int:
        """Seconds for which a user is not to be asked for; 0 where the next request is answered."""
        user = self._users.get(uid)
        over = 0.0 if user is None else user.owes(now) - CREDIT
        return min(LONGEST, math.ceil(over / PAID_OFF)) if over > 0 else 0

    def took(self, uid: int, seconds: float, now: float) -> None:
        """Note what an answer took."""
        user = self._users.pop(uid, None) or _User(0, 0.0, now)
        if len(self._users) >= _MOST:
            del self._users[next(iter(self._users))]
        self._turn += 1
        user.turn, user.debt, user.at = self._turn, user.owes(now) + max(0.0, seconds - self.usual), now
        self._users[uid] = user
        if user.debt > CREDIT and now - self._said >= _LOG_EVERY:
            self._said = now
            log.error(
                f"requests of uid {uid} are dear to answer; those above {1_000 * CREDIT:.0f} ms are left to Slurm, and "
                f"the next planning pass finds their jobs a place",
                654,
            )
