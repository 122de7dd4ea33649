"""How packed jobs bear each other on one GPU, as the snapshot carries it to whoever places a job."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from policy.cluster.shared.tenants import Tenant
from policy.request.share import Share


@dataclass(frozen=True, slots=True)
class Meeting:
    """What comes of it if a packed job joins others."""

    own: float = 1.0
    """Its speed, in parts of that with its share alone."""
    theirs: float = 1.0
    """Of those who are there the slowest one's."""
    least: float = 1.0
    """What is promised to the one who is promised least."""
    lost: float = 0.0
    """Percent of a GPU that they and it lose by its coming."""
    known: bool = False
    """Whether anything is known of it and of one of them."""


NOBODY_KNOWN = Meeting()


class Company(Protocol):
    """Predicts how packed jobs bear each other; `policy.sharing.neighbours` has the one that goes by profiles."""

    least: float
    """The part of its speed that each has to be promised."""

    def adopt(self, old: object) -> None:
        """Take over what another has worked out."""
        ...

    def bears(self, meeting: Meeting) -> bool:
        """Whether all of them keep their speed."""
        ...

    def meeting(self, share: Share, there: Iterable[Tenant]) -> Meeting:
        """What comes of it if a job joins these."""
        ...
