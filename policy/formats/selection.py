# SPDX-License-Identifier: Apache-2.0
"""The jobs of a reading that meet a condition: only records that have changed since the last reading are tested.

A busy site has tens of thousands of jobs, and to test each of them takes some 10 ms of a pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, NamedTuple

from policy.formats.slurm_facts import JobFacts


class _Step(NamedTuple):
    """The changes from one reading to another; most selections step from the same one to the same one."""

    before: tuple[JobFacts, ...] = ()
    now: tuple[JobFacts, ...] = ()
    by_number: Mapping[int, JobFacts] = {}
    gone: AbstractSet[int] = frozenset()
    new: Sequence[JobFacts] = ()
    """Records that came or have changed: an unchanged record is the same object."""


class Selection:
    """The jobs that meet one condition, which must depend on a job's record alone."""

    _last: ClassVar = _Step()

    def __init__(self, meets: Callable[[JobFacts], object]) -> None:
        self._meets = meets
        self._jobs: tuple[JobFacts, ...] = ()
        self._found: dict[int, JobFacts] = {}

    def of(self, jobs: Iterable[JobFacts]) -> dict[int, JobFacts]:
        """Returns those of all `jobs` of a reading by number."""
        jobs = tuple(jobs)  # the same object, if it is one
        step = self._step(self._jobs, jobs)
        new = {job.id: job for job in step.new if self._meets(job)}
        for number in (*step.gone, *(job.id for job in step.new)):
            self._found.pop(number, None)
        self._found |= new
        self._jobs = jobs
        return self._found.copy()

    @classmethod
    def all_of(cls, jobs: tuple[JobFacts, ...]) -> Mapping[int, JobFacts]:
        """Returns all `jobs` of a reading by number."""
        last = cls._last
        return (last if last.now is jobs else cls._step(last.now, jobs)).by_number

    @classmethod
    def _step(cls, before: tuple[JobFacts, ...], now: tuple[JobFacts, ...]) -> _Step:
        last = cls._last
        if last.before is not before or last.now is not now:
            old = last.by_number if last.now is before else {job.id: job for job in before}
            by_number = {job.id: job for job in now}
            new = [job for number, job in by_number.items() if old.get(number) is not job]
            cls._last = last = _Step(before, now, by_number, old.keys() - by_number.keys(), new)
        return last
