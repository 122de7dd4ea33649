# SPDX-License-Identifier: Apache-2.0
"""Handles failed jobs: classifies each failure, and retries the jobs that ask for it.

The first node of a failed job sends the class that the end of its log shows (docs/admin/failures.md), and repeats it
until the job was handled: so no end of berthd loses a failure. Slurm refuses changes of an ended job. So the class
stands in the job's plan only once the job is back in the queue, together with its tries and the time of the next one;
for a job that stays failed, the class goes into the accounting. Slurm decides what may be requeued. A job that another
system requeues after a failure (an Epilog, a recovery service) is left to that system from then on: two systems that
requeue one job would end each other's tries. A job whose comment names such a system is left to it from the beginning.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGTERM

from policy.daemon.hear.accounts import Accounts
from policy.daemon.hear.endings import (
    BY_BERTH,
    LEFT_BY_LOSS,
    NodeWord,
    as_it_ran,
    began_anew,
    by_berth,
    class_of,
    failed,
    limits,
    lost_nodes,
    put_back,
)
from policy.formats.errors import FormatError, NoAnswer, SlurmError
from policy.formats.job_plan import NOTHING
from policy.formats.outcome import FAILED, Outcome
from policy.formats.plan_fields import BY_OTHERS, ID, RETRY, is_preflight
from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts, Reading
from policy.retry import history
from policy.retry.classes import CLASSES
from policy.retry.classify import Classification
from policy.retry.decision import decide
from policy.retry.other_systems import reason_to_leave
from policy.site import log
from policy.slurm import changes
from policy.slurm.boots import boot_times
from policy.slurm.interface import Gateway
from policy.slurm.outcomes import outcome

WORD_WITHIN = 60.0
"""Seconds to wait for the node's notice of a failed job: the node is busy, and no retry begins earlier."""

PATIENCE = 600.0
"""Seconds after which a job that does not end is given up, and a notice is forgotten."""

MOST_ONE_BY_ONE = 64
"""The most ended jobs whose records are asked for one by one; of more, the next reading shows which ended well."""

MOST_OVER = 4_096
"""The most ended jobs that wait to be handled; beyond that the oldest are given up."""

_LOOK_AGAIN = 1.0
_NODES_SHOWN = 0.5
"""Seconds, added to the delay of a reading's nodes, after which it shows the nodes as they were for its jobs."""
_HOLDING = frozenset(
    {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)


@dataclass(slots=True)
class _Over:
    """A job that has ended, or was requeued."""

    id: int
    since: float
    due: float
    job: JobFacts | None = None
    """The job as it ran; None if only a node's notice tells of it."""
    found: Outcome | None = None


class Failures:
    """The jobs that have just ended, and the notices of those that failed."""

    def __init__(
        self,
        gateway: Gateway,
        ask: Callable[[int], Outcome] = outcome,
        accounts: Accounts | None = None,
        ask_boots: Callable[[Iterable[str]], Mapping[str, int]] = boot_times,
        others: Sequence[str] = (),
    ) -> None:
        self._gateway = gateway
        self._ask = ask
        self._ask_boots = ask_boots
        self._others = others
        self._accounts = accounts or Accounts()
        self._holding = Selection(lambda job: job.state in _HOLDING and job.wants_gpus and job.plan)
        self._running: dict[int, JobFacts] = {}
        self._over: dict[int, _Over] = {}
        self._words: dict[int, tuple[float, NodeWord]] = {}
        self._settled: dict[tuple[int, int, str], float] = {}
        """Runs that were handled, by job, start and first node: that node need not repeat its notice."""
        self._left: dict[int, float] = {}
        """Jobs whose ends are handled elsewhere, such as those whose share could not be set up."""
        self._classes: Counter[str] = Counter()
        self._retried = 0
        self.asks_for_ended = False
        """True if the next reading should also show the jobs that have ended."""

    @property
    def counts(self) -> dict[str, int]:
        """Returns the counts for `berth status`."""
        if not self._classes:
            return {}
        counts = {f"failed.{name}": count for name, count in sorted(self._classes.items())}
        return {"failed": self._classes.total(), "retried": self._retried, **counts}

    def hear(self, word: NodeWord, at: float) -> bool:
        """Takes a node's notice, which may be repeated; returns True if the node need not repeat it."""
        self._words = {job: one for job, one in self._words.items() if one[0] + PATIENCE > at}
        self._settled = {run: since for run, since in self._settled.items() if since + PATIENCE > at}
        if (word.job, word.start, word.node) in self._settled or word.failure not in CLASSES:
            return True
        if word.degraded and word.job not in self._running:
            self.leave(word.job, at)
        self._words[word.job] = at, word
        if word.job in self._over:
            self._over[word.job].due = at
        elif word.job not in self._running:
            # The run was too short for any reading, or it ended while there was no berthd.
            self._over[word.job] = _Over(word.job, at, at)
        return False

    def leave(self, job_id: int, at: float) -> None:
        """Notes that a job's end is handled elsewhere, and does not count as its failure."""
        self._left = {job: since for job, since in self._left.items() if since + PATIENCE > at}
        self._left[job_id] = at

    def watch(self, reading: Reading) -> None:
        """Finds the GPU jobs that ran at the last reading and do not run any more."""
        running = {
            job.id: self._running.get(job.id) or as_it_ran(job) if job.state == "COMPLETING" else job
            for job in self._holding.of(reading.jobs).values()
        }
        for job_id in self._running.keys() - running.keys():
            self._over[job_id] = _Over(job_id, reading.at, reading.at, self._running[job_id])
        self._running = running
        if len(self._over) > MOST_ONE_BY_ONE:
            self._sort_out(reading)
        self.asks_for_ended = len(self._over) > MOST_ONE_BY_ONE

    def step(self, reading: Reading, at: float) -> int:
        """Handles one job that is due; returns its number, or 0 if there is none."""
        self._accounts.tend(at)
        over = next((one for one in self._over.values() if one.due <= at), None)
        if over is None:
            return 0
        counted = self._classes.total()
        try:
            done = self._settle(over, reading, at)
        except (FormatError, SlurmError) as problem:
            # A question can be asked again; a change that was not answered may have been made.
            if isinstance(problem, NoAnswer) and self._classes.total() == counted and at - over.since < PATIENCE:
                for one in self._over.values():
                    one.due = max(one.due, at + _LOOK_AGAIN)
                return over.id
            log.error(f"JobId={over.id} has ended, and its end was not looked into: {problem}", 618)
            done = True
        if done:
            self._drop(over.id, at)
        return over.id

    def _drop(self, job_id: int, at: float) -> None:
        del self._over[job_id]
        _, word = self._words.pop(job_id, (0.0, None))
        if word is not None:
            self._settled[word.job, word.start, word.node] = at

    def _sort_out(self, reading: Reading) -> None:
        """Drops the jobs that ended well; a busy site ends more jobs than there is time to ask about."""
        at, jobs = reading.at, Selection.all_of(reading.jobs)
        for over in list(self._over.values()):
            job = jobs.get(over.id)
            if job is not None and over.found is None and not _is_worth_a_look(job.state):
                self._left.pop(job.id, None)
                self._drop(job.id, at)
        if len(self._over) > MOST_OVER:
            dropped = list(self._over)[: len(self._over) - MOST_OVER]
            log.error(
                f"{len(dropped)} jobs have ended, and their ends were not looked into, JobId={dropped[0]} the first:"
                f" more than {MOST_OVER} wait for that",
                618,
            )
            for job_id in dropped:
                self._drop(job_id, at)

    def _settle(self, over: _Over, reading: Reading, at: float) -> bool:
        """Handles one job; returns True if it is done."""
        if self._left.pop(over.id, None) is not None:
            return True
        fresh = over.found is None
        if over.found is None:
            state = self._gateway.job(over.id).state
            if state in _HOLDING:
                over.due = at + _LOOK_AGAIN
                return at - over.since >= PATIENCE
            # Most jobs end well, and their full records are not needed.
            if not _is_worth_a_look(state):
                return True
            over.found = self._ask(over.id)
        found = over.found
        plan = found.plan
        if plan is None or ID not in plan or by_berth((over.job and over.job.plan) or plan, plan):
            return True
        if found.state == "PENDING":
            if over.job is None:
                self._note_unseen(found, at)
                return True
            return over.job.guest or self._put_back(over, over.job, found, reading, at)
        if found.state not in FAILED:
            return True
        _, word = self._words.get(found.id, (0.0, None))
        if word is not None and word.start not in {0, found.started}:
            word = None  # it is about an earlier run
        if word is None and found.state == "FAILED" and at - over.since < WORD_WITHIN:
            over.due = over.since + WORD_WITHIN
            return False
        if not fresh and _is_another_run(now := self._ask(over.id), found):
            self._step_back(found, now, class_of(found, word), at)
            return True
        self._conclude(found, word, reading, at)
        return True

    def _conclude(self, found: Outcome, word: NodeWord | None, reading: Reading, at: float) -> None:
        """Counts and logs a failure, and retries the job if its user wants that and it may help."""
        plan, config = found.plan or NOTHING, self._gateway.config()
        self._settled[found.id, found.started, next(iter(found.nodes), "")] = at
        failure = class_of(found, word)
        runs = history.with_last(plan, found, failure)
        self._classes[failure.failure] += 1
        log.info(f"JobId={found.name} failed: {failure.failure}, {failure.sign}", 619)
        decision = None
        if RETRY in plan and not is_preflight(plan):
            others = reason_to_leave(found.comment, self._others, put_back=BY_OTHERS in plan)
            decision = decide(runs, limits(found, reading, config), others)
            log.info(f"JobId={found.name} is {'' if decision.again else 'not '}tried again: {decision.reason}", 620)
        new = failed(plan, runs, found.ended, decision, at)
        if decision is not None and decision.again:
            self._gateway.requeue(found.name)
            # Until then Slurm itself delays its start, for two minutes from the requeue on.
            self._gateway.delay(found.id, new, round(decision.wait_s))
            self._retried += 1
        else:
            text = self._gateway.job(found.id).admin_comment
            self._accounts.note(found.id, new.into(text), config, at)

    def end_hung(self, job: JobFacts, sign: str, reading: Reading, at: float) -> bool:
        """Requeues a job that hangs if the rules for retries allow one more try; returns True if it did."""
        found = self._ask(job.id)
        plan = found.plan or NOTHING
        if found.state != "RUNNING" or found.started != job.start or is_preflight(plan):
            return False
        failure = Classification("mpi_runtime_failure", transient=True, reason=sign, sign=sign)
        runs = history.with_last(plan, replace(found, ended=int(at)), failure)
        others = reason_to_leave(found.comment, self._others, put_back=BY_OTHERS in plan)
        decision = decide(runs, limits(found, reading, self._gateway.config()), others)
        if not decision.again:
            log.info(f"JobId={found.name} hangs and is not requeued: {decision.reason}", 620)
            return False
        self._gateway.requeue(found.name)
        # Its end is handled here, and must not count twice.
        self.leave(found.id, at)
        self._gateway.delay(found.id, failed(plan, runs, int(at), decision, at), round(decision.wait_s))
        self._classes[failure.failure] += 1
        self._retried += 1
        log.info(f"JobId={found.name} is requeued because it hangs: {decision.reason}", 620)
        return True

    def _step_back(self, found: Outcome, now: Outcome, failure: Classification, at: float) -> None:
        """Notes a failed job that another program requeued before its class was known."""
        self._classes[failure.failure] += 1
        log.info(f"JobId={found.name} failed: {failure.failure}, and was requeued, not by Berth", 621)
        plan = now.plan or NOTHING
        runs = history.with_last(plan, found, failure)
        if now.state not in FAILED and now.state not in changes.ENDED:
            self._gateway.annotate(found.id, failed(plan, runs, found.ended, None, at).having(BY_OTHERS.set))

    def _put_back(self, over: _Over, before: JobFacts, found: Outcome, reading: Reading, at: float) -> bool:
        """Handles a job that is back in the queue; returns True if it is done."""
        lost = lost_nodes(before, reading)
        if reading.at - over.since < reading.nodes_late + _NODES_SHOWN and not lost:
            # Its record is asked for anew then: it may be pinned elsewhere meanwhile.
            over.due, over.found = at + _LOOK_AGAIN, None
            return False
        _, word = self._words.get(found.id, (0.0, None))
        if word is None and _failed_by_itself(found) and not lost and at - over.since < WORD_WITHIN:
            over.due = over.since + WORD_WITHIN
            return False
        self._note(before, found, self._ask(over.id), lost, at)
        return True

    def _note_unseen(self, found: Outcome, at: float) -> None:
        """Notes a failed run that was too short for any reading: only its node's notice tells of it."""
        _, word = self._words.get(found.id, (0.0, None))
        if word is None or not word.start or not found.restarts or not _failed_by_itself(found):
            return
        if not (found.plan or NOTHING).has_any((*BY_BERTH, BY_OTHERS)):
            run = replace(found, state="FAILED", nodes=(word.node,), started=word.start, ended=int(at))
            self._step_back(run, found, class_of(run, word), at)

    def _note(self, before: JobFacts, found: Outcome, now: Outcome, lost: tuple[str, ...], at: float) -> None:
        """Notes a job that Slurm or a person requeued, while it ran or after it had failed."""
        _, word = self._words.get(found.id, (0.0, None))
        if word is not None and (
            (lost and word.failure in LEFT_BY_LOSS) or not before.start or word.start != before.start
        ):
            word = None
        anew = () if lost or word is not None else self._began_anew(before)
        if word is not None or (_failed_by_itself(found) and not lost and not anew):
            # It had failed: Slurm's Epilog came first, and a requeue by hand second.
            run = replace(found, state="FAILED", nodes=before.nodes, ended=int(at), started=before.start or int(at))
            self._step_back(run, now, class_of(run, word), at)
            return
        plan = now.plan or NOTHING
        trial = put_back(before, at, lost, anew)
        self._classes[trial.failure.failure] += 1
        log.info(f"JobId={found.name} was put back into the queue: {trial.failure.failure}, {trial.failure.sign}", 621)
        self._gateway.annotate(found.id, failed(plan, [*history.trials(plan), trial], int(at), None, at))

    def _began_anew(self, before: JobFacts) -> tuple[str, ...]:
        if not before.nodes:
            return ()
        try:
            return began_anew(before, self._ask_boots(before.nodes))
        except SlurmError as problem:
            log.error(f"JobId={before.id} was put back, and whether its nodes booted is not known: {problem}", 622)
            return ()


def _is_another_run(now: Outcome, found: Outcome) -> bool:
    """Tells whether a failed job has been requeued since."""
    return (now.state, now.restarts, now.started) != (found.state, found.restarts, found.started)


def _failed_by_itself(found: Outcome) -> bool:
    """Tells whether the last run ended with a status of its own; a run that was requeued has none."""
    return found.exit_code != 0 or found.signal not in {0, SIGTERM}


def _is_worth_a_look(state: str) -> bool:
    """Tells whether a job that ran has failed, was requeued, or has not ended yet."""
    return state in FAILED or state in _HOLDING or state == "PENDING"
