# SPDX-License-Identifier: Apache-2.0
"""Ends jobs that hold all of their GPUs idle for the time of their partition's rule (`[berthd] end_idle`).

A job's record, which `berth why` reads, says after one third and after two thirds of that time when the job is to end.
It ends by Slurm's own cancel, once a third of the time has passed since it was told twice. As its record says when it
was told, a restart of berthd forgets nothing, and a time without berthd ends no job sooner. One kernel undoes it all.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from policy.daemon.hear.gpu_use import BELIEVED_FOR, Idle
from policy.formats.errors import SlurmError
from policy.formats.job_plan import latest
from policy.formats.plan_fields import IDLE_END, IDLE_TOLD
from policy.formats.slurm_facts import JobFacts
from policy.formats.slurm_syntax.moments import local_time
from policy.plan.ledger.tracker import gpus_held
from policy.site import log
from policy.slurm.interface import Gateway

MOST_AN_HOUR = 10
"""The most jobs that are ended in an hour: a driver that tells wrong must not empty a cluster."""
_TELLINGS = 2
_AGAIN_AFTER = 60.0
"""Seconds after which a change that Slurm refused is tried again."""


class IdleEnds:
    """The jobs that are told, and those that are ended."""

    def __init__(self, gateway: Gateway, rules: Mapping[str, int]) -> None:
        self._gateway, self._rules = gateway, rules
        self._lately: deque[float] = deque()
        self._refused: dict[int, float] = {}
        self._ended = 0
        self._began = float("inf")

    @property
    def counts(self) -> dict[str, int]:
        """Returns the count for `berth status`."""
        return {"ended_idle": self._ended} if self._ended else {}

    def step(self, idle: Idle, jobs: Iterable[JobFacts], at: float) -> int:
        """Tells and ends the jobs that are due; returns the number of updates."""
        if not self._rules:
            return 0
        self._began = min(self._began, at)
        since = defaultdict(list)
        for (_, _, job_id), gpu in idle.items():
            since[job_id].append(gpu.no_kernel)
        updates, refused = 0, {}
        for job in jobs:
            if job.state != "RUNNING" or job.partition not in self._rules:
                continue
            try:
                if (again := self._refused.get(job.id, 0.0)) > at:
                    refused[job.id] = again
                else:
                    updates += self._look(job, since[job.id], self._rules[job.partition], at)
            except SlurmError as problem:
                log.error(f"JobId={job.id} holds its GPUs idle and could not be told or ended: {problem}", 666)
                refused[job.id] = at + _AGAIN_AFTER
        self._refused = refused
        return updates

    def _look(self, job: JobFacts, since: list[int], limit: int, at: float) -> int:
        # The parts of a heterogeneous job wait for each other.
        is_idle = since and not job.het and len(since) >= sum(_count(job, node) for node in job.nodes)
        idle_s = at - max(since) if is_idle else 0.0
        told, told_at = job.known.get(IDLE_TOLD, (0, 0))
        if told and not is_idle:
            # A node whose notice is not here yet repeats it within that time.
            return self._write(job, None, "") if at >= self._began + BELIEVED_FOR else 0
        # It has worked since it was told.
        told = told if told_at >= at - idle_s else 0
        if idle_s < (told + 1) * limit / 3 or (told and at < told_at + limit / 3):
            return 0
        if told < _TELLINGS:
            ends = local_time(int(max(at - idle_s + limit, at + (_TELLINGS - told) * limit / 3)))
            text = f"from {ends} on, if its GPUs run no kernel until then: a rule of partition {job.partition}"
            log.info(f"JobId={job.id} is told for the {('first', 'second')[told]} time that it ends {text}", 666)
            return self._write(job, (told + 1, int(at)), text)
        while self._lately and self._lately[0] < at - 3_600.0:
            self._lately.popleft()
        if len(self._lately) >= MOST_AN_HOUR:
            return 0
        text = f"its GPUs ran no kernel for {idle_s / 60:.0f} min: a rule of partition {job.partition}, told twice"
        self._write(job, (_TELLINGS + 1, int(at)), text)
        self._gateway.cancel(job.id)
        self._lately.append(at)
        self._ended += 1
        log.info(f"JobId={job.id} was ended: {text}", 666)
        return 2

    def _write(self, job: JobFacts, told: tuple[int, int] | None, text: str) -> int:
        plan = latest(self._gateway.job(job.id).admin_comment, job.plan).without(IDLE_TOLD, IDLE_END)
        self._gateway.annotate(job.id, plan.having(IDLE_TOLD(told), IDLE_END(text or None)))
        return 1


def _count(job: JobFacts, node: str) -> int:
    """Returns the number of GPUs that a job holds on a node; more than it can have where that is not known."""
    held = gpus_held(job, node)
    return held.bit_count() if held else 64
