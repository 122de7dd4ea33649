# SPDX-License-Identifier: Apache-2.0
"""Users whose programs brought an MPS server down, and with it the jobs of others: for a time they share no GPU.

Under MPS one user's faults hit all users of the GPU. So packed jobs of such a user get GPUs of their own, in the same
books as ever. It is kept in memory alone: a berthd that begins anew has the nodes' own memory to rely on.
"""

from policy.formats.errors import SlurmError
from policy.site import log
from policy.slurm.interface import Gateway

APART_FOR = 3_600.0
"""Seconds after the last fault."""


class MpsFaults:
    """The users who are kept apart, and until when."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._until: dict[int, float] = {}

    def blame(self, job: int, at: float) -> None:
        """A node says that a process of this job made MPS fail."""
        try:
            user = self._gateway.job(job).user_id
        except SlurmError as problem:
            log.error(f"JobId={job} brought MPS down, and its user is not known: {problem}", 612)
            return
        log.info(f"JobId={job} brought MPS down: packed jobs of uid {user} share no GPU for an hour", 612)
        self._until[user] = at + APART_FOR

    def users(self, at: float) -> frozenset[int]:
        """Returns the users that are kept apart now."""
        self._until = {user: until for user, until in self._until.items() if until > at}
        return frozenset(self._until)
