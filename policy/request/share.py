# SPDX-License-Identifier: Apache-2.0
"""A packed job's share of a GPU, and the parties of users whose jobs may share one."""

from dataclasses import dataclass

from policy.request.settings import Sharing

EVERYBODY = -1
"""The party of all users, if the site lets them share GPUs."""


NOBODY = -2
"""The party that shares with no job: whole-GPU jobs, and parts that Slurm counts but no known job holds."""


ALONE = -3
"""The party of packed jobs that share with no job for a time, as programs of their user made MPS fail."""


Mate = tuple[int, str]
"""The key of a packed job in the list of foes: its user and its name."""


UNNAMED: Mate = (-1, "")


@dataclass(frozen=True, slots=True)
class Share:
    """The part that a packed job asks of each of its GPUs."""

    percent: int
    """Percent of the multiprocessors, as its user asked."""
    gpu_mem: int | None = None
    """MiB of memory; None: `percent` of the GPU's memory."""
    party: int = EVERYBODY
    """Only jobs of one party share a GPU: a uid, or EVERYBODY."""
    way: str = "mps"
    mate: Mate = UNNAMED
    foes: frozenset[Mate] = frozenset()
    """Jobs with which it shared a GPU that one of them brought down; it never shares with them again."""
    picky: bool = False
    """True if it waits rather than join jobs with which it, or they, would not keep their speed."""

    def granted(self, capacity: int) -> int:
        """Returns the MiB that it is granted on a GPU with `capacity` MiB for packed jobs (0: not known)."""
        return capacity * self.percent // 100 if self.gpu_mem is None else self.gpu_mem

    def counted(self, capacity: int) -> int:
        """Returns the percent of such a GPU that it takes from others, and pays for: of its memory, if that is more.

        >>> Share(1, 8_000).counted(16_000), Share(60, 8_000).counted(16_000), Share(1, 8_000).counted(0)
        (50, 60, 1)
        """
        if self.gpu_mem is None or capacity <= 0:
            return self.percent
        return min(100, max(self.percent, -(-100 * self.gpu_mem // capacity)))


def party(user: int, sharing: Sharing) -> int:
    """Returns the party of a user's packed jobs: they may share GPUs within it."""
    if user in sharing.apart:
        return ALONE
    return EVERYBODY if sharing.mixes_users else user


def foes_of(mate: Mate, sharing: Sharing) -> frozenset[Mate]:
    """Returns the jobs with which a job never shares a GPU."""
    return frozenset(other for one, other in sharing.foes if one == mate) if sharing.foes else frozenset()
