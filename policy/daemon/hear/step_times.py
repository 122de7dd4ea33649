# SPDX-License-Identifier: Apache-2.0
"""Records the step times of jobs that guards report, for the scores: `berth-steps/1` (docs/develop/formats.md).

The guards of all nodes of a job report at about the same time, and their reports become one line. Berthd keeps no
database: if the record is lost, the scores of the last calibration count again.
"""

import re
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from policy.formats.slurm_facts import JobFacts
from policy.history.slowness.job import analyse
from policy.history.slowness.sources import from_guard
from policy.history.slowness.votes import in_other_jobs
from policy.site import log, step_records
from topology.calibrate.steps import ClockReport, JobReport, Rank, Report

_PAYLOAD = re.compile(
    rb"berth/1 steps node=([A-Za-z0-9_.-]{1,255}) gpu=([0-9]|[1-5][0-9]|6[0-3]) uuid=([A-Za-z0-9-]{1,64})"
    rb" job=([1-9][0-9]{0,9}) app=([0-9a-f]{1,16}) own_ns=([0-9]{1,15}) steps=([0-9]{1,12})"
    rb" mhz=([0-9]{1,5}) watts=([0-9]{1,5}) seconds=([0-9]{1,6})"
)
_TOGETHER_S = 120.0
"""Seconds from a job's first report until its line is written: all nodes report within a minute."""
_WINDOW = 4
"""The last lines by which a running job is judged: one for each hour."""
_MOST_PENDING = 65_536
"""The most GPUs whose reports wait to be written."""


@dataclass(frozen=True, slots=True)
class StepWord:
    """A guard's report on one GPU of a job; a figure of 0 was not measured."""

    node: str
    gpu: int
    uuid: str
    job: int
    app: str
    own_ns: int
    steps: int
    mhz: int
    watts: int
    seconds: int


def read_word(payload: bytes) -> StepWord | None:
    """Returns the notice in a payload; None if it is not one."""
    match = _PAYLOAD.fullmatch(payload)
    if match is None:
        return None
    node, uuid, app = (match[place].decode() for place in (1, 3, 5))
    gpu, job, own_ns, steps, mhz, watts, seconds = (int(match[place]) for place in (2, 4, 6, 7, 8, 9, 10))
    return StepWord(node, gpu, uuid, job, app, own_ns, steps, mhz, watts, seconds)


@dataclass(slots=True)
class _Pending:
    since: float
    app: str
    app_class: str
    words: dict[tuple[str, int], StepWord] = field(default_factory=dict)


class HeardStepTimes:
    """Collects reports, and writes each job's line once its nodes have reported. Without a record it does nothing.

    It keeps the last lines of each running job, and with each line looks again for what makes the job slow.
    """

    def __init__(self, record: Path | None) -> None:
        self._lately: dict[int, deque[JobReport]] = {}
        self.slow: dict[int, str] = {}
        """By job number the reason why a running job is slow, as the end of a sentence."""
        self._record = record
        self._pending: dict[int, _Pending] = {}
        self._waiting = 0
        self._broken = ""

    def hear(self, word: StepWord, job: JobFacts | None, app_class: str, at: float) -> None:
        """Takes one GPU's report; drops it if the job is not known, as its class is not known either."""
        if self._record is None or job is None or self._waiting >= _MOST_PENDING:
            return
        # `app` stands for the command. The user is added: only runs of one user are known to be alike.
        one = self._pending.setdefault(job.id, _Pending(at, f"{job.user}-{word.app}", app_class))
        self._waiting += (word.node, word.gpu) not in one.words
        one.words[word.node, word.gpu] = word

    def write_due(self, at: float, model_of: Callable[[str, str], str]) -> None:
        """Records the jobs whose nodes have had time to report; `model_of` returns a GPU's model by node and UUID."""
        due = [job for job, one in self._pending.items() if at - one.since >= _TOGETHER_S]
        if self._record is None or not due:
            return
        made: dict[int, list[Report]] = {}
        for job in due:
            one = self._pending.pop(job)
            self._waiting -= len(one.words)
            made[job] = _reports(job, one, at, model_of)
        self._judge(self._record, made)
        try:
            step_records.append(self._record, list(chain.from_iterable(made.values())))
            self._broken = ""
        except OSError as problem:
            if not self._broken:
                log.error(f"{self._record}: {problem.strerror}; step times are not kept until that is mended", 629)
            self._broken = str(problem)

    def keep(self, jobs: Container[int]) -> None:
        """Forgets the lines of all other jobs."""
        self._lately = {job: one for job, one in self._lately.items() if job in jobs}
        self.slow = {job: one for job, one in self.slow.items() if job in jobs}

    def _judge(self, record: Path, made: Mapping[int, Sequence[Report]]) -> None:
        found = {}
        for job, reports in made.items():
            lines = self._lately.setdefault(job, deque(maxlen=_WINDOW))
            lines.extend(one for one in reports if isinstance(one, JobReport))
            self.slow.pop(job, "")
            if times := from_guard(lines, str(job)):
                found[job] = analyse(times)
        doubtful = {job: ranks for job, one in found.items() if (ranks := one.doubtful)}
        nodes = {rank.node for ranks in doubtful.values() for rank in ranks}
        # No other running job has these GPUs: earlier jobs' times on them are in the record.
        others = step_records.reports_on(record, nodes) if nodes else []
        for job, one in found.items():
            surer = analyse(one.times, in_other_jobs(others, str(job))) if job in doubtful and others else one
            self.slow |= {job: surer.text} if surer.parts else {}


def _reports(job: int, one: _Pending, at: float, model_of: Callable[[str, str], str]) -> list[Report]:
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = [word for _, word in sorted(one.words.items())]
    ranks = tuple(
        Rank(word.node, word.gpu, word.uuid, round(word.own_ns / 1e6, 6), word.steps) for word in words if word.own_ns
    )
    made: list[Report] = [JobReport(str(job), one.app, one.app_class, when, ranks)] if ranks else []
    for word in words:
        if word.mhz and word.watts:
            model = model_of(word.node, word.uuid)
            clock = float(word.mhz), float(word.seconds)
            made.append(ClockReport(word.node, word.gpu, word.uuid, when, model, float(word.watts), *clock, one.app))
    return made
