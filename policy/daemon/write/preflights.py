"""Pre-flights and the jobs that depend on them: told apart, bounded, and never left to fly alone.

All that a job needs of its pre-flight Slurm does by itself. What is here helps: a pre-flight that does not begin in
time keeps its job no longer, one whose job has gone is ended, and what one failed of is told of its job too.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from policy.daemon.hear.accounts import Accounts
from policy.formats import preflight_mark
from policy.formats.errors import SlurmError
from policy.formats.job_plan import NOTHING, Entry, of_text
from policy.formats.plan_fields import PREFLIGHT, PREFLIGHT_FAIL, PREFLIGHT_SIGN, PREFLIGHT_TEXT
from policy.formats.slurm_facts import JobFacts, Reading
from policy.retry.classify import Classification
from policy.site import log
from policy.slurm.by_command.command import run_command
from policy.slurm.interface import Gateway

REMEMBERED = 3_600.0
"""Seconds for which it is known which job depended on a pre-flight that is over."""

_ALONE = 5.0
"""Seconds for which a pre-flight may fly without a job that was seen to wait for it; then it is looked for."""

_WAITING = frozenset({"PENDING", "ARRAY"})
_GOES_ON = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"})
_PRESENT = _WAITING | _GOES_ON
_OVER = frozenset(
    {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "REVOKED"}
)
_NOT_ITS_OWN = ("Dependency", "BeginTime")
"""Reasons for which the job itself would wait as well."""
_DEPENDENCY = re.compile(rb"^\s*Dependency=(\S*)", re.MULTILINE)


class Preflights:
    """The pre-flights that are known, from one reading to the next."""

    def __init__(
        self, gateway: Gateway, accounts: Accounts, wait: float, run: Callable[..., bytes] = run_command
    ) -> None:
        self._gateway = gateway
        self._accounts = accounts
        self._wait = wait
        self._run = run
        self._jobs: dict[tuple[int, int], tuple[int, float]] = {}
        """By pre-flight and user, as a job may name another user's: the job that depends on it, and when last seen."""
        self._alone: dict[tuple[int, int], float] = {}
        """Pre-flights that fly and whose job no reading has shown: since when; infinite once it was looked for."""
        self._flying: dict[int, JobFacts] = {}
        self._could_begin: dict[int, float] = {}
        self._ended: set[int] = set()
        self._over = 0
        self._failed = 0

    @property
    def told(self) -> dict[str, str]:
        """For `berth status`."""
        if not (self._flying or self._over):
            return {}
        numbers = {"preflights": len(self._flying), "preflights_over": self._over, "preflights_failed": self._failed}
        return {name: str(number) for name, number in numbers.items()}

    def step(self, reading: Reading) -> None:
        """Look at all of them."""
        marked = [job for job in reading.jobs if PREFLIGHT in job.known and job.state in _PRESENT]
        flying = {job.id: job for job in marked if preflight_mark.is_one(job.plan)}
        self._over += len(self._flying.keys() - flying.keys())
        self._flying = flying
        self._remember(marked, reading.at)
        self._look_for_jobs(reading.at)
        self._could_begin = {
            number: self._could_begin.get(number, reading.at)
            for number, job in flying.items()
            if job.state in _WAITING and not job.reason.startswith(_NOT_ITS_OWN)
        }
        watched = {(number, job.user) for number, job in flying.items()} & self._jobs.keys()
        for one in sorted(watched):
            since = self._could_begin.get(one[0], math.inf)
            if reading.at - since >= self._wait and one[0] not in self._ended:
                self._give_up(one)
        watched &= self._jobs.keys()
        present = {job.id for job in reading.jobs if job.state in _PRESENT} if watched else set()
        for one in watched:
            job_id, seen = self._jobs[one]
            if job_id in present or reading.at - seen <= 2.0:
                continue
            if self._is_over(job_id):
                self._end(one[0], f"job {job_id}, which waited for it, is gone")
            else:
                self._jobs[one] = job_id, reading.at

    def _is_over(self, job_id: int) -> bool:
        """By its record: a reading may leave a job out, and to end its pre-flight would end the job."""
        try:
            return self._gateway.job(job_id).state in _OVER
        except SlurmError:
            return False

    def _remember(self, marked: Iterable[JobFacts], at: float) -> None:
        self._jobs = {one: job for one, job in self._jobs.items() if job[1] + REMEMBERED > at}
        for job in marked:
            if (number := preflight_mark.first(job.plan)) is not None and job.state in _WAITING:
                self._jobs[number, job.user] = job.id, at

    def _look_for_jobs(self, at: float) -> None:
        """Find the job of a pre-flight that nobody was seen to wait for: it was over before a reading showed it."""
        alone = {(number, job.user) for number, job in self._flying.items()} - self._jobs.keys()
        self._alone = {one: self._alone.get(one, at) for one in alone}
        due = {one for one, since in self._alone.items() if at - since >= _ALONE}
        if not due:
            return
        self._alone |= dict.fromkeys(due, math.inf)
        with suppress(SlurmError):
            for job in self._gateway.read(ended=True).jobs:
                number = preflight_mark.first(job.plan)
                if number is not None and (number, job.user) in due:
                    self._jobs[number, job.user] = job.id, at

    def _give_up(self, one: tuple[int, int]) -> None:
        """A job waits no longer for a pre-flight that does not begin."""
        number, (job_id, _) = one[0], self._jobs[one]
        try:
            record = self._run("scontrol", "show", "job", str(job_id))
            found = _DEPENDENCY.search(record)
            left = without(found[1].decode("utf-8", "replace") if found else "", number)
            self._run("scontrol", "update", f"JobId={job_id}", f"Dependency={left}")
        except SlurmError as problem:
            log.error(f"JobId={job_id} still waits for its pre-flight, job {number}: {problem}", 623)
            return
        self._jobs.pop(one)
        text = f"did not begin within {self._wait:.0f} s, so that the job goes on without it"
        log.info(f"JobId={job_id} its pre-flight, job {number}, {text}", 624)
        self._annotate(job_id, PREFLIGHT_TEXT(text))
        self._end(number, "it did not begin in time")

    def _end(self, number: int, why: str) -> None:
        if number in self._ended:
            return
        self._ended.add(number)
        log.info(f"JobId={number} is a pre-flight and is cancelled: {why}", 624)
        try:
            self._run("scancel", str(number))
        except SlurmError as problem:
            log.error(f"JobId={number} could not be cancelled: {problem}", 623)

    def failed(self, number: int, user: int, failure: Classification, config: Mapping[str, str], at: float) -> None:
        """A pre-flight of this user failed: its job's own record says of what."""
        self._failed += 1
        job_id, _ = self._jobs.get((number, user), (0, 0.0))
        if not job_id:
            return
        new = PREFLIGHT_FAIL(failure.failure), PREFLIGHT_SIGN(failure.sign)
        log.info(f"JobId={job_id} ends with its pre-flight, job {number}: {failure.failure}, {failure.sign}", 624)
        if self._annotate(job_id, *new):
            return
        try:
            text = self._gateway.job(job_id).admin_comment
            self._accounts.note(job_id, (of_text(text) or NOTHING).having(*new).into(text), config, at)
        except SlurmError as problem:
            log.error(f"JobId={job_id}: what its pre-flight failed of could not be written: {problem}", 623)

    def _annotate(self, job_id: int, *new: Entry) -> bool:
        """Write into a job's plan while that is possible; Slurm lets nobody change a job that is over."""
        try:
            record = self._gateway.job(job_id)
            if record.state != "PENDING":
                return False
            self._gateway.annotate(job_id, (of_text(record.admin_comment) or NOTHING).having(*new))
        except SlurmError:
            return False
        return True


def without(dependency: str, number: int) -> str:
    """A job's dependencies, as `scontrol show job` writes them, without the one on this job.

    >>> without("afterok:7(unfulfilled),afterany:8(unfulfilled),afterok:70+5(unfulfilled)", 7)
    'afterany:8,afterok:70+5'
    >>> without("(null)", 7)
    ''
    """
    kept = []
    for one in re.sub(r"\([a-z]*\)", "", dependency).split(","):
        kind, *jobs = one.split(":")
        left = [job for job in jobs if re.split(r"[_+]", job)[0] != str(number)]
        if kind and (left or not jobs):
            kept.append(":".join([kind, *left]))
    return ",".join(kept)
