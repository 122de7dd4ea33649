# SPDX-License-Identifier: Apache-2.0
"""AntMan's law: the duty that comes out is the one that was asked for."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from prolog_epilog.injob.law import DutyLaw

DUTIES = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]


class Program:
    """A program that works in steps of changing length, in simulated time."""

    def __init__(self, law: DutyLaw, seed: int = 1, sleep_error: float = 0.0) -> None:
        self.law, self.random, self.sleep_error = law, random.Random(seed), sleep_error
        self.now = self.worked = self.idled = 0.0
        self.longest = 0.0

    def nap(self, seconds: float) -> None:
        if seconds:
            real = seconds * (1 + self.random.uniform(0, self.sleep_error)) + 0.0001
            self.now += real
            self.idled += real
            self.longest = max(self.longest, real)
            self.law.idled(real)

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds

    def step(self, seconds: float, boundaries: int, duty: float) -> None:
        for _ in range(boundaries):
            self.nap(self.law.boundary(self.now, duty))
            self.work(seconds / max(boundaries, 1))
        if not boundaries:
            self.work(seconds)
        self.nap(self.law.step(self.now, duty))

    @property
    def duty(self) -> float:
        return self.worked / (self.worked + self.idled)


@pytest.mark.parametrize("duty", DUTIES)
@pytest.mark.parametrize("boundaries", [0, 1, 30])
@pytest.mark.parametrize("kind", ["steady", "noisy", "alternating", "growing", "bursts"])
def test_the_duty_holds_over_changing_steps(duty: float, boundaries: int, kind: str) -> None:
    program = Program(DutyLaw(), sleep_error=0.05)
    for number in range(200):
        seconds = {
            "steady": 0.05,
            "noisy": 0.05 * program.random.lognormvariate(0, 0.5),
            "alternating": 0.02 if number % 2 else 0.2,
            "growing": 0.01 * (1 + number / 20),
            "bursts": 1.5 if number % 50 == 49 else 0.05,
        }[kind]
        program.step(seconds, boundaries, duty)

    assert program.duty == pytest.approx(duty, abs=0.02)


def test_naps_are_spread_over_the_boundaries_of_a_step() -> None:
    program = Program(DutyLaw())
    for _ in range(3):
        program.step(0.1, 20, 0.5)
    program.longest = 0.0
    program.step(0.1, 20, 0.5)

    assert program.longest < 0.02


def test_a_program_without_steps_settles_at_its_boundaries() -> None:
    program = Program(DutyLaw())
    for _ in range(2000):
        program.nap(program.law.boundary(program.now, 0.25))
        program.work(0.01)

    assert program.duty == pytest.approx(0.25, abs=0.03)


def test_short_steps_after_a_long_one_are_not_put_to_sleep_for_it() -> None:
    program = Program(DutyLaw())
    program.step(7.0, 1, 0.5)
    for _ in range(100):
        idled, worked = program.idled, program.worked
        program.step(0.03, 3, 0.5)
        assert program.idled - idled < 4 * (program.worked - worked)

    assert program.duty == pytest.approx(0.5, abs=0.02)


def test_a_shut_gate_is_neither_work_nor_owed_idleness() -> None:
    program = Program(DutyLaw())
    for _ in range(10):
        program.step(0.1, 0, 0.5)
    program.now += 60
    program.law.shut(60)
    before = program.idled
    program.step(0.1, 0, 0.5)

    assert program.idled - before == pytest.approx(0.1, abs=0.01)


def test_a_changed_duty_holds_from_the_next_step_on() -> None:
    program = Program(DutyLaw())
    for duty in (0.9, 0.1, 0.5):
        for _ in range(5):
            program.step(0.1, 5, duty)
        program.worked = program.idled = 0.0
        for _ in range(50):
            program.step(0.1, 5, duty)
        assert program.duty == pytest.approx(duty, abs=0.02)


@pytest.mark.parametrize("duty", DUTIES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_wait_for_each_other_do_not_send_each_other_to_sleep(duty: float, ranks: int) -> None:
    programs = [Program(DutyLaw(ranks=ranks), seed, sleep_error=0.005) for seed in range(ranks)]
    took, alone = [], 0.0
    for number in range(200):
        works = [0.1 * program.random.uniform(0.97, 1.03) for program in programs]
        alone += max(works)
        for program, work in zip(programs, works, strict=True):
            program.step(work, 10 if number % 3 else 9, duty)
        # The next step begins when the last rank has come.
        latest = max(program.now for program in programs)
        for program in programs:
            program.now = latest
        took.append(latest)
    steps = [after - before for before, after in itertools.pairwise(took[100:])]

    assert alone / 200 / statistics.mean(steps) == pytest.approx(duty, abs=0.02)
    assert max(steps) < 2 * statistics.mean(steps)


def test_ranks_hold_a_new_duty_at_once() -> None:
    programs = [Program(DutyLaw(ranks=4), seed) for seed in range(4)]
    for duty in (0.9, 0.1):
        for _ in range(20):
            before = programs[0].now
            for program in programs:
                program.step(0.1 * program.random.uniform(0.97, 1.03), 0, duty)
                program.now = max(one.now for one in programs)
            for program in programs:
                program.now = max(one.now for one in programs)
            if duty == 0.1:
                assert 0.8 < programs[0].now - before < 1.3
