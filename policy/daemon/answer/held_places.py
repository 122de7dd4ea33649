"""The places that were given to jobs which Slurm has not shown yet, so that no two jobs get the same one.

A job that Slurm refuses after the hook never shows up, and nobody tells berthd. Its place is kept until a reading that
is late enough lacks the job. A user of whom several jobs never show up has no places kept for a while: they are still
given, and Slurm starts whichever job comes first. So no user can keep places from others by jobs that Slurm refuses.
Of packed jobs Slurm would start each that has room, beside whomever; so a few of their places are kept in any case.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from policy.cluster.fleet import Fleet
from policy.plan.ledger.claims import Claim, renumbered
from policy.site import log

KEPT_FOR = 10.0
"""Seconds for which a place is kept for a job that Slurm has not shown yet."""

MOST_MISSING = 2
"""Jobs of one user that never showed up, after which that user's places are not kept."""

NOT_KEPT_FOR = 300.0
"""Seconds for which a missing job counts."""

FEW_SHARES = 8
"""Places of such a user that are kept all the same, for packed jobs: Slurm would start two that must not meet."""

MOST, MOST_OF_A_USER = 8_192, 1_024
"""Places kept at a time: each is claimed again in each new picture."""

_MOST_USERS = 1_024
_REMEMBERED = 8
"""Missing jobs of one user that are remembered, by the nonces of their requests."""
_LOG_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A claim, whose it is, and when it was given."""

    claim: Claim
    uid: str
    given: float


class HeldPlaces:
    """Keeps places by the nonces of the requests that they were given to.

    Ten seconds after its place was given Slurm shows each job that it took, also while many submissions wait.
    """

    def __init__(self) -> None:
        self._held: dict[str, HeldPlace] = {}
        self._of_user: dict[str, int] = {}
        self._missing: dict[str, dict[str, float]] = {}
        """By user, the nonces of jobs that never showed up, and when that was seen."""
        self._said = 0.0
        self._read = 0.0
        """Time of the last reading."""

    def __iter__(self) -> Iterator[str]:
        """Yields the nonces."""
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def places(self) -> list[HeldPlace]:
        """Returns the places, the oldest first."""
        return list(self._held.values())

    def keeps(self, uid: str, now: float, *, packed: bool = False) -> bool:
        """Tells whether a place of this user would be kept."""
        missing, most = self._missing.get(uid), MOST_OF_A_USER
        if missing and sum(when > now - NOT_KEPT_FOR for when in missing.values()) >= MOST_MISSING:
            most = FEW_SHARES if packed else 0
        return len(self._held) < MOST and self._of_user.get(uid, 0) < most

    def keep(self, nonce: str, uid: str, claim: Claim, now: float) -> None:
        """Keeps a place."""
        self._drop(nonce)
        self._held[nonce] = HeldPlace(claim, uid, now)
        self._of_user[uid] = self._of_user.get(uid, 0) + 1

    def look(self, seen: AbstractSet[str], read: float, now: float) -> None:
        """Takes in a reading of Slurm and its time: places of jobs that it shows, or should show, are kept no more."""
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
        """Lets nothing lie after the time to which this machine's clock was set back."""
        self._held = {nonce: replace(held, given=min(held.given, read)) for nonce, held in self._held.items()}
        self._said = min(self._said, now)
        for nonces in self._missing.values():
            nonces.update({nonce: min(when, now) for nonce, when in nonces.items()})

    def renumber(self, old: Fleet, new: Fleet) -> None:
        """Gives the places the node numbers of another fleet."""
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
