# SPDX-License-Identifier: Apache-2.0
"""Users whose programs brought an MPS server down, and with it other users' jobs: for a time they share no GPU.

Under MPS one user's faults hit all users of the GPU. So packed jobs of such a user get GPUs of their own. The list is
only in memory: after a restart of berthd the nodes still remember such users.
"""

from policy.formats.errors import SlurmError
from policy.formats.slurm_facts import JobFacts
from policy.site import log
from policy.slurm.interface import Gateway

APART_FOR = 3_600.0
"""Seconds from the last fault for which a user shares no GPU."""


class MpsFaults:
    """The users who are kept apart, and the times until which they are."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._until: dict[int, float] = {}

    def blame(self, job: int, at: float, known: JobFacts | None = None) -> None:
        """Keeps the user of a job apart that made MPS fail, as a node says; `known` is the job in the last reading."""
        try:
            user = self._gateway.job(job).user_id if known is None else known.user
        except SlurmError as problem:
            log.error(f"JobId={job} brought MPS down, and its user is not known: {problem}", 612)
            return
        log.info(f"JobId={job} brought MPS down: packed jobs of uid {user} share no GPU for an hour", 612)
        self._until[user] = at + APART_FOR

    def users(self, at: float) -> frozenset[int]:
        """Returns the users who are kept apart now."""
        self._until = {user: until for user, until in self._until.items() if until > at}
        return frozenset(self._until)
