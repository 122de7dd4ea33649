"""A packed job's share of a GPU, and whose jobs may share one."""

from dataclasses import dataclass

from policy.request.settings import Sharing

EVERYBODY = -1
"""The party of all users where the site lets them mix."""


NOBODY = -2
"""The party of those who share with no one: whole-GPU jobs, and what Slurm counts but no known job holds."""


ALONE = -3
"""The party of packed jobs that are put beside no one for a time: their user's programs brought MPS down."""


Mate = tuple[int, str]
"""A packed job as others remember it: its user, and its name."""


UNNAMED: Mate = (-1, "")


@dataclass(frozen=True, slots=True)
class Share:
    """What a packed job asks of each of its GPUs."""

    percent: int
    gpu_mem: int | None = None
    """MiB; None: as many percent of the GPU's memory."""
    party: int = EVERYBODY
    """Only jobs of one party are put together: a uid, or EVERYBODY."""
    way: str = "mps"
    mate: Mate = UNNAMED
    foes: frozenset[Mate] = frozenset()
    """With whom it was on a GPU that one of them brought down: never again."""
    picky: bool = False
    """Whether it rather waits than join jobs with which it, or they, would not keep their speed."""

    def granted(self, capacity: int) -> int:
        """MiB that count as its own, on a GPU that has so many for packed jobs (0: nobody knows)."""
        return capacity * self.percent // 100 if self.gpu_mem is None else self.gpu_mem


def party(user: int, sharing: Sharing) -> int:
    """Who a user's packed jobs may be put together with."""
    if user in sharing.apart:
        return ALONE
    return EVERYBODY if sharing.mixes_users else user


def foes_of(mate: Mate, sharing: Sharing) -> frozenset[Mate]:
    """With whom a job is never put together."""
    return frozenset(other for one, other in sharing.foes if one == mate) if sharing.foes else frozenset()
