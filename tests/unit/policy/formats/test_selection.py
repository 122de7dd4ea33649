# SPDX-License-Identifier: Apache-2.0
"""Jobs that meet a condition: found among the changed records alone, and the same as by a look at all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.formats.selection import Selection
from policy.formats.slurm_facts import JobFacts
from tests.examples import examples
from tests.unit.policy_world import running

JOBS = {number: running(number, "n1", 1, 600.0) for number in range(8)}
STATES = st.sampled_from(["PENDING", "RUNNING", "COMPLETED"])
CHANGES = st.lists(st.dictionaries(st.sampled_from(list(JOBS)), STATES | st.none(), max_size=8), max_size=12)
"""By reading, the new states of some jobs; None: the job is gone."""


def runs(job: JobFacts) -> bool:
    return job.state == "RUNNING"


def waits(job: JobFacts) -> bool:
    return job.state == "PENDING"


@settings(max_examples=examples(200))
@given(CHANGES, st.lists(st.booleans(), min_size=12, max_size=12))
def test_after_any_changes_it_is_what_a_look_at_all_jobs_finds(
    changes: list[dict[int, str | None]], seen: list[bool]
) -> None:
    always, sometimes, there = Selection(runs), Selection(waits), dict[int, JobFacts]()
    for changed, is_seen in zip(changes, seen, strict=False):
        for number, state in changed.items():
            there.pop(number, None)
            if state is not None:
                there[number] = replace(JOBS[number], state=state)
        jobs = tuple(there.values())

        assert always.of(jobs) == {job.id: job for job in jobs if runs(job)}
        if is_seen:
            assert sometimes.of(jobs) == {job.id: job for job in jobs if waits(job)}


def test_a_record_that_stays_is_tested_once() -> None:
    tested = []
    found = Selection(lambda job: tested.append(job.id))
    first, second, third = (JOBS[number] for number in (1, 2, 3))

    found.of((first, second))
    found.of((first, third))
    found.of((first, replace(third, state="COMPLETED")))

    assert tested == [1, 2, 3, 3]


def test_what_a_condition_fails_on_is_tested_again_and_nothing_is_left_of_it() -> None:
    broken = {2}

    def meets(job: JobFacts) -> bool:
        if job.id in broken:
            raise ValueError("not to be read")
        return True

    found = Selection(meets)
    with pytest.raises(ValueError, match="not to be read"):
        found.of((JOBS[1], JOBS[2]))
    with pytest.raises(ValueError, match="not to be read"):
        found.of((JOBS[2],))
    broken.clear()

    assert found.of((JOBS[2],)) == {2: JOBS[2]}


def test_what_it_returned_stays_as_it_was() -> None:
    found = Selection(runs)
    before = found.of((JOBS[1],))
    found.of(())

    assert before == {1: JOBS[1]}
