# SPDX-License-Identifier: Apache-2.0
"""Requeues packed jobs, owners and guests whose node could not set their share up, a few times.

Their task was stopped before the user's code, and the Epilog says so. Such a job is requeued once Slurm has it as
failed, and only then: a job that finished, was cancelled or ran out of time is never run again. The nodes that it has
to avoid stand in its plan, so that they survive a restart of berthd; its user's node lists stay as they are.
"""

from collections.abc import Callable, Iterable

from policy.formats.errors import FormatError, NoAnswer, SlurmError
from policy.formats.job_plan import JobPlan, readable
from policy.formats.outcome import Outcome
from policy.formats.plan_fields import DEGRADED, DEGRADED_TEXT, DISAGREES, HELD, HELD_TEXT, PARKED, SHARE, TIER
from policy.formats.slurm_facts import JobText
from policy.plan.jobs.waiting_jobs import avoiding
from policy.plan.ledger.changes import BACK_AFTER
from policy.request.tiers import OPPORTUNISTIC
from policy.site import log
from policy.slurm import disagreement
from policy.slurm.interface import Gateway
from policy.slurm.outcomes import outcome

MOST = 3
"""The most times that a job is sent elsewhere."""

AVOID_FOR = 3_600.0
"""Seconds for which a job avoids a node that could not set its share up."""

PATIENCE = 300.0
"""Seconds after an Epilog's notice within which the job must end (its other nodes have Epilogs too) and Slurm must take
the updates."""

_ENDING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STAGE_OUT"})
_FAILED = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "PENDING"})
"""States of a job that did not get to its user's code; PENDING if another program has requeued it."""


class Degraded:
    """The jobs that are to be sent elsewhere."""

    def __init__(self, gateway: Gateway, ask: Callable[[int], Outcome] = outcome) -> None:
        self._gateway = gateway
        self._ask = ask
        self._met: dict[int, tuple[float, set[str]]] = {}
        self._again: dict[int, int] = {}
        """By job, the start of the run in a repeated notice: a node repeats its notice until it is answered."""

    def note(self, job: int, node: str, at: float) -> None:
        """Takes an Epilog's notice that the job could not have its share on a node."""
        self._met.setdefault(job, (at, set()))[1].add(node)
        self._again.pop(job, None)

    def note_again(self, job: int, node: str, start: int, at: float) -> None:
        """Takes a repeated notice after the job's end: nothing is done if the Epilog's notice was handled."""
        if job in self._met:
            self._met[job][1].add(node)
            return
        self.note(job, node, at)
        self._again[job] = start

    def send_elsewhere(self, at: float) -> int:
        """Requeues the jobs that have ended by now; returns the number of updates."""
        updates = 0
        for job_id, (since, nodes) in list(self._met.items()):
            try:
                job = self._gateway.job(job_id)
                if job.state in _ENDING and at - since < PATIENCE:
                    continue
                if not self._is_known(job):
                    updates += self._send(job, nodes, since, at)
            except (FormatError, SlurmError) as problem:
                # A busy slurmctld, or one that has the job between two states, takes the update a moment later.
                if at - since < PATIENCE:
                    if isinstance(problem, NoAnswer):
                        break  # each question may take long
                    continue
                log.error(f"JobId={job_id} could not have its share and is not sent elsewhere: {problem}", 601)
            del self._met[job_id]
            self._again.pop(job_id, None)
        return updates

    def _is_known(self, job: JobText) -> bool:
        """Tells whether the run of a repeated notice was handled already: the job waits, or has run again."""
        start = self._again.get(job.id)
        if start is None:
            return False
        return job.state == "PENDING" or self._ask(job.id).started != start

    def tell_held(self, held: Iterable[tuple[int, str]]) -> int:
        """Tells users why their jobs were held on these nodes; returns the number of updates."""
        updates = 0
        for job_id, where in held:
            try:
                job = self._gateway.job(job_id)
                if (plan := readable(job.admin_comment)) is not None:
                    updates += self._tell(job, plan, where) or 0
            except SlurmError:
                continue  # the next reading shows it again
        return updates

    def _tell(self, job: JobText, plan: JobPlan, where: str) -> int | None:
        """Writes why a waiting job is held, unless that is done; returns the updates made, or None if it may start."""
        why = disagreement.of_text(job, plan) if job.state == "PENDING" else ""
        if not why:
            return None
        if DISAGREES in plan:
            return 0
        self._gateway.annotate(job.id, plan.having(DISAGREES(f"{why}; cancel it and submit it again")))
        log.error(f"JobId={job.id} UserId={job.user_id} was held on {where}: {why}", 602)
        return 1

    def _send(self, job: JobText, nodes: set[str], since: float, at: float) -> int:
        where = ",".join(sorted(nodes))
        plan = readable(job.admin_comment)
        if plan is not None and (told := self._tell(job, plan, where)) is not None:
            return told  # its node has held it (prolog_epilog/given.py)
        if job.state not in _FAILED or plan is None or not plan.has_any((SHARE, TIER)):
            log.info(f"JobId={job.id} could not have its share on {where}; it is {job.state.lower()} and stays so", 603)
            return 0
        count = 0 if DEGRADED not in plan else plan.get(DEGRADED, MOST)
        if count >= MOST:
            # Its plan has said so since the last time: Slurm does not change a job that has ended.
            log.error(
                f"JobId={job.id} could not have its share on {where}; it was sent elsewhere {count} times already", 604
            )
            return 0
        if job.state != "PENDING":
            if self._ask(job.id).started > since:
                log.info(f"JobId={job.id} could not have its share on {where}; it ran again, and not by Berth", 603)
                return 0
            self._gateway.requeue(job.id)
        self._gateway.annotate(job.id, sent(plan, where, at))
        log.info(f"JobId={job.id} could not have its share on {where}: sent elsewhere, time {count + 1} of {MOST}", 605)
        return 2


def sent(plan: JobPlan, where: str, at: float) -> JobPlan:
    """Returns the plan of a job that is sent away from these nodes."""
    count = plan.get(DEGRADED, 0) + 1
    last = "; if that fails, it is left as it ends" if count >= MOST else ""
    return plan.without(HELD, HELD_TEXT).having(
        DEGRADED(count),
        DEGRADED_TEXT(f"{where} could not set its share up: sent elsewhere, time {count} of {MOST}{last}"),
        avoiding(plan, at, dict.fromkeys(where.split(","), at + AVOID_FOR)),
        # A guest gives its seat up, and waits less than Slurm lets a requeued job wait.
        PARKED(int(at + BACK_AFTER) if plan.get(TIER) == OPPORTUNISTIC else None),
    )
