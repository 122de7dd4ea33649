# SPDX-License-Identifier: Apache-2.0
"""Chooses the user whose request is answered next, and turns costly users away for a while.

So no user delays another user's requests. The user who was answered longest ago is next. Answers are cheap, but a user
can write a request for which a place is hard to find. The time that an answer takes beyond a usual one is the user's
debt, which is paid off slowly. A user who owes too much is answered `busy`: the plugin does not ask for that user for
some seconds. Those jobs go on as if berthd had not answered, and the next planning pass finds them a place.
"""

import math
import re
from dataclasses import dataclass

from policy.site import log

USUAL = 0.002
"""Seconds of processor time that any answer may take, on a cluster of up to a thousand nodes."""

_USUAL_PER_NODE = 2e-6

CREDIT = 0.2
"""Seconds of debt that a user may have: a script that submits two dozen large jobs owes no more."""

PAID_OFF = 0.01
"""Seconds of debt that are paid off in a second: the part of each second that one user's costly requests may take."""

LONGEST = 60
"""The most seconds for which a user is turned away."""

_MOST = 1_024
_LOG_EVERY = 60.0
_ASKER = re.compile(rb"berth/1 submit\nnonce=([0-9a-f]{16})\nuid=([0-9]{1,10})\n")


def asker(datagram: bytes) -> tuple[str, int] | None:
    """Returns the nonce and the uid of a submit request; None for any other datagram."""
    match = _ASKER.match(datagram)
    return None if match is None else (match[1].decode(), int(match[2]))


@dataclass(slots=True)
class _User:
    turn: int
    debt: float
    at: float
    """The time of that debt."""

    def owes(self, now: float) -> float:
        return max(0.0, self.debt - PAID_OFF * (now - self.at))


class Turns:
    """Remembers when each user was answered and what the answers took; times are those of a monotonic clock."""

    def __init__(self) -> None:
        self._users: dict[int, _User] = {}
        """Users in the order of their turns; the user who was answered last is the last."""
        self._turn = 0
        self._said = -math.inf
        self.usual = USUAL

    def nodes(self, count: int) -> None:
        """Sets the usual time of an answer by the number of nodes: on a larger cluster any answer takes longer."""
        self.usual = max(USUAL, _USUAL_PER_NODE * count)

    def of(self, uid: int) -> int:
        """Returns a user's turn; the user with the least is next."""
        user = self._users.get(uid)
        return 0 if user is None else user.turn

    def sent_away(self, uid: int, now: float) -> int:
        """Returns the seconds for which a user is turned away; 0 if the next request is answered."""
        user = self._users.get(uid)
        over = 0.0 if user is None else user.owes(now) - CREDIT
        return min(LONGEST, math.ceil(over / PAID_OFF)) if over > 0 else 0

    def took(self, uid: int, seconds: float, now: float) -> None:
        """Notes the seconds that an answer to a user took."""
        user = self._users.pop(uid, None) or _User(0, 0.0, now)
        if len(self._users) >= _MOST:
            del self._users[next(iter(self._users))]
        self._turn += 1
        user.turn, user.debt, user.at = self._turn, user.owes(now) + max(0.0, seconds - self.usual), now
        self._users[uid] = user
        if user.debt > CREDIT and now - self._said >= _LOG_EVERY:
            self._said = now
            log.error(
                f"requests of uid {uid} are slow to answer; those above {1_000 * CREDIT:.0f} ms are left to Slurm, and "
                f"the next planning pass finds their jobs a place",
                654,
            )
