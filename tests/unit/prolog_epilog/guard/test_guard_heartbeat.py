# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of jobs with one and several processes, as the Decider hears them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from prolog_epilog.guard.measure.heartbeat import OwnerHeartbeat, Rank
from prolog_epilog.guard.measure.signals import HostBeat
from prolog_epilog.injob.word import WordBeat

SILENT = WordBeat(1, 100, False, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ())


@dataclass
class Job:
    """A job's words; each rank steps when it is told."""

    ranks: int = 1

    def __post_init__(self) -> None:
        self.words: dict[Rank, WordBeat] = {("GPU-a", rank): replace(SILENT, slot=rank) for rank in range(self.ranks)}

    def steps(self, rank: int, at: float, took: float, count: int = 1) -> None:
        before = self.words["GPU-a", rank]
        self.words["GPU-a", rank] = replace(
            before,
            at_ns=round(at * 1e9),
            steps=before.steps + count,
            step_ns=before.step_ns + round(took * count * 1e9),
        )


def test_steps_from_before_the_guard_looked_say_nothing() -> None:
    job, heartbeat = Job(), OwnerHeartbeat()
    job.steps(0, 10.0, 3.0, 5)
    assert heartbeat.take(10.0, job.words, alone=True) is None
    job.steps(0, 11.0, 0.5, 2)

    assert heartbeat.take(11.1, job.words, alone=True) == HostBeat(11.0, 2, 1.0)
    assert heartbeat.take(11.2, job.words, alone=True) is None


def test_a_job_is_as_slow_as_its_slowest_rank() -> None:
    job, heartbeat = Job(4), OwnerHeartbeat()
    heartbeat.take(0.0, job.words, alone=True)
    for rank in range(4):
        job.steps(rank, 1.0, 1.0)
    assert heartbeat.take(1.0, job.words, alone=True) == HostBeat(1.0, 1, 1.0)
    for rank in range(3):
        job.steps(rank, 2.0, 1.0)
    assert heartbeat.take(2.0, job.words, alone=False) is None  # one has not ended its step yet
    job.steps(3, 2.5, 1.5)

    assert heartbeat.take(2.5, job.words, alone=False) == HostBeat(2.5, 1, 1.5)


def test_ranks_with_steps_of_their_own_length_are_compared_with_themselves() -> None:
    job, heartbeat = Job(2), OwnerHeartbeat()
    heartbeat.take(0.0, job.words, alone=True)
    for turn in range(1, 4):
        job.steps(0, turn, 1.0)
        job.steps(1, turn, 0.1, 10)
        beat = heartbeat.take(turn, job.words, alone=True)
    assert beat is not None
    assert beat.took / beat.steps == pytest.approx(1.0)
    job.steps(0, 4.0, 1.0)
    job.steps(1, 4.0, 0.2, 5)
    beat = heartbeat.take(4.0, job.words, alone=False)

    assert beat is not None
    assert beat.took / beat.steps == pytest.approx(2.0)


def test_a_rank_that_stands_still_does_not_silence_the_others() -> None:
    job, heartbeat = Job(2), OwnerHeartbeat()
    heartbeat.take(0.0, job.words, alone=True)
    heard = 0
    for tenth in range(100):
        job.steps(0, tenth / 10, 0.1)
        heard += heartbeat.take(tenth / 10, job.words, alone=True) is not None
    assert heard > 20


def test_a_process_that_begins_anew_is_not_taken_for_a_slow_one() -> None:
    job, heartbeat = Job(), OwnerHeartbeat()
    heartbeat.take(0.0, job.words, alone=True)
    job.steps(0, 1.0, 0.1, 10)
    heartbeat.take(1.0, job.words, alone=True)
    job.words["GPU-a", 0] = replace(SILENT, pid=200, at_ns=2_000_000_000, steps=1, step_ns=60_000_000_000)
    assert heartbeat.take(2.0, job.words, alone=True) is None
    assert heartbeat.take(3.0, {}, alone=True) is None


def test_requests_are_told_from_steps() -> None:
    for share, serves in ((1.0, False), (0.2, True), (3.0, True)):
        job, heartbeat = Job(), OwnerHeartbeat()
        for second in range(30):
            heartbeat.take(second, job.words, alone=True)
            job.steps(0, second + 1.0, share / 4, 4)
        assert heartbeat.serves is serves


def test_a_rank_that_was_slowed_from_its_first_step_on_is_compared_with_what_it_does_alone() -> None:
    job, heartbeat = Job(2), OwnerHeartbeat()
    heartbeat.take(0.0, job.words, alone=False)
    job.steps(0, 2.0, 1.0, 2)
    job.steps(1, 2.0, 2.0)
    heartbeat.take(2.0, job.words, alone=False)
    for rank in (0, 1):
        job.steps(rank, 3.0, 1.0)
    heartbeat.take(3.0, job.words, alone=True)
    for rank, took in ((0, 1.0), (1, 1.5)):
        job.steps(rank, 4.5, took)

    beat = heartbeat.take(4.5, job.words, alone=False)
    assert beat is not None
    assert beat.took == pytest.approx(1.5)
